"""status.json: where a federated run stands, rewritten whole on every event, for whoever looks on."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbm.engine.records import RoundRecord
from fedbm.engine.run_folder import finite
from fedbm.utils.io import write_json

FORMAT = 1
BEAT = 2.0  # seconds after which it is written though nothing has changed: its reader sees that the server lives


class StatusFile:
    """Keep the latest of each field and write them all."""

    def __init__(self, path: Path, run: str, rounds: int) -> None:
        self._path, self._written = path, -math.inf
        self._values: dict[str, Any] = {
            "format": FORMAT,
            "run": run,
            "round": 0,
            "rounds": rounds,
            "phase": "census",  # census | train | aggregate | evaluate | done | finished | failed
            "nodes": [],
            "val": None,
            "test": None,
            "why": None,  # the sentence with which it failed
            "started": _now(),
        }

    def write(self, **values: Any) -> None:
        before, self._values = self._values, self._values | values
        if self._values != before or time.monotonic() - self._written > BEAT:
            write_json(self._path, finite({**self._values, "updated": _now()}))
            self._written = time.monotonic()

    def write_record(self, record: RoundRecord) -> None:
        """A round is done; scores stay as they were in a round without evaluation."""
        scores = {"val": record.val, "test": record.test} if record.val is not None else {}
        self.write(round=record.round, phase="done", **scores)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
