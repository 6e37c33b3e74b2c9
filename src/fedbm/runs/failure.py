"""failed.json: why a run stopped before its end. It is removed when the run continues."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedbm.engine.run_folder import FORMAT, RunFolder
from fedbm.errors import FedBMError
from fedbm.utils.io import read_json, write_json

NAME = "failed.json"
NOT_FINITE = "not finite"  # in the engine's messages about NaN and infinity


def keep_failure(folder: Path, why: str) -> None:
    """Write the reason into the run's folder, unless another process works on the run."""
    with suppress(FedBMError), RunFolder(folder).lock():
        write_json(folder / NAME, {"format": FORMAT, "reason": why})


def clear_failure(folder: Path) -> None:
    with suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)


def failure_of(folder: Path) -> str:
    """Return the reason, or "" if the run has not failed."""
    try:
        found = read_json(folder / NAME) if (folder / NAME).is_file() else {}
        return str(found.get("reason", ""))
    except (FedBMError, AttributeError):
        return "its failed.json cannot be read"


def is_divergence(why: str) -> bool:
    """Return whether training itself failed because a value is not finite."""
    return NOT_FINITE in why
