"""failed.json: why a run stopped before its end. It is removed when the run starts or resumes."""

from __future__ import annotations

import dataclasses
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedbm.engine.run_folder import FORMAT, RunFolder
from fedbm.errors import DivergenceError, FedBMError
from fedbm.utils.io import read_json, write_json
from fedbm.utils.json_records import decode

NAME = "failed.json"


@dataclass(frozen=True)
class Failure:
    """Why a run failed."""

    reason: str
    diverged: bool = False  # training itself failed, because a value is not finite

    @staticmethod
    def of(error: Exception) -> Failure:
        """Return the failure as a sentence. An error of a method's own code is also printed."""
        if isinstance(error, FedBMError):
            return Failure(str(error), isinstance(error, DivergenceError))
        traceback.print_exception(error)
        if "CUDA error" in str(error):
            return DeviceFailure(f"The GPU failed: {str(error).splitlines()[0]}")
        return Failure(f"{type(error).__name__}: {error}")


class DeviceFailure(Failure):
    """The GPU failed, so this process can no longer use it."""


def keep_failure(folder: Path, failure: Failure) -> None:
    """Write the reason into the run's folder, unless another process works on the run."""
    with suppress(FedBMError), RunFolder(folder).lock():
        write_json(folder / NAME, {"format": FORMAT, **dataclasses.asdict(failure)})


def clear_failure(folder: Path) -> None:
    with suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)


def failure_of(folder: Path) -> Failure | None:
    """Return why the run failed, or None if it has not failed."""
    path = folder / NAME
    try:
        return decode(Failure, read_json(path), path) if path.is_file() else None
    except FedBMError:
        return Failure(f"its {NAME} cannot be read")
