"""<state>/refused.json: why the server keeps this node out of a run, for the supervisor of the node to show.

The client app writes it when the server says so, and removes it when the server asks for work. The supervisor removes
it when the node starts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedbm.errors import FedBMError
from fedbm.utils.io import read_json, write_json

FORMAT = 1


def write_refusal(state: Path, why: str) -> None:
    """Record the server's sentence."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(_path(state), {"format": FORMAT, "why": why, "time": now})


def read_refusal(state: Path) -> str:
    """Return the server's sentence, or '' if the server has not refused this node."""
    try:
        return str(read_json(_path(state))["why"]) if _path(state).exists() else ""
    except (FedBMError, KeyError):  # removed meanwhile, or damaged
        return ""


def clear_refusal(state: Path) -> None:
    """Forget a refusal."""
    _path(state).unlink(missing_ok=True)


def _path(state: Path) -> Path:
    return state / "refused.json"
