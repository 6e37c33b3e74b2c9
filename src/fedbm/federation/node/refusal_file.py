"""<state>/refused.json: why the server refuses this node.

The client app writes it when the server refuses the node and removes it when the server sends work. A starting node
removes it too.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedbm.errors import FedBMError
from fedbm.utils.io import read_json, write_json

FILE = "refused.json"


def write_refusal(state: Path, why: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(state / FILE, {"format": 1, "why": why, "time": now})


def read_refusal(state: Path) -> str:
    """Return the server's reason, or '' if the server has not refused this node."""
    try:
        return str(read_json(state / FILE)["why"]) if (state / FILE).exists() else ""
    except (FedBMError, KeyError):  # removed in the meantime, or damaged
        return ""


def clear_refusal(state: Path) -> None:
    (state / FILE).unlink(missing_ok=True)
