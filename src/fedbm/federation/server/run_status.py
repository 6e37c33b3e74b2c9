"""status.json: the state of a federated run. The server app writes it; the operator's commands and page read it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbm.engine.run_folder import read_rounds, replace_nonfinite
from fedbm.utils.io import read_object, write_json
from fedbm.utils.text import format_seconds

FORMAT = 1
WRITE_SECONDS = 2.0  # an unchanged status is written again after this time, as a sign that the server app is running
RECENT_ROUNDS = 10  # their mean duration estimates the remaining time
PHASES = {"census": "asking who is there", "train": "training", "aggregate": "averaging", "evaluate": "evaluating"}


class StatusFile:
    """Keep the latest value of each field, and write them all."""

    def __init__(self, path: Path, run: str, rounds: int) -> None:
        self._path, self._written = path, -math.inf
        self.list_nodes: Callable[[], Sequence[Mapping[str, Any]]] = list  # the roster's, once there is one
        self._values: dict[str, Any] = {
            "format": FORMAT,
            "run": run,
            "round": 0,
            "rounds": rounds,
            "phase": "census",  # census | train | aggregate | evaluate | done | finished | failed
            "val": None,
            "test": None,
            "why": None,  # why the run failed
            "started": utc_now(),
        }

    def write(self, **values: Any) -> None:
        before, self._values = self._values, {**self._values, **values, "nodes": self.list_nodes()}
        if self._values != before or time.monotonic() - self._written > WRITE_SECONDS:
            write_json(self._path, replace_nonfinite({**self._values, "updated": utc_now()}))
            self._written = time.monotonic()


def utc_now() -> str:
    """Return the time in UTC, as status.json contains it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment."""

    status: Mapping[str, Any]
    rounds: tuple[Mapping[str, Any], ...]  # the records so far

    @property
    def phase(self) -> str:
        """What the server does now, in words."""
        return PHASES.get(self.status["phase"], str(self.status["phase"]))

    @property
    def over(self) -> bool:
        return self.status["phase"] in ("finished", "failed")

    @property
    def seconds_per_round(self) -> float | None:
        latest = [float(record["seconds"]["total"]) for record in self.rounds[-RECENT_ROUNDS:]]
        return sum(latest) / len(latest) if latest else None

    @property
    def seconds_remaining(self) -> float | None:
        """An estimate from the mean duration of the latest rounds."""
        mean, remaining = self.seconds_per_round, int(self.status["rounds"]) - len(self.rounds)
        return None if mean is None else mean * max(0, remaining)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of status.json and what follows from the records."""
        more = {"rounds_done": len(self.rounds), "seconds_per_round": self.seconds_per_round}
        return {**self.status, **more, "seconds_remaining": self.seconds_remaining}

    def remark(self, has_server_app: bool) -> str:
        """Return why the run failed, or that no server app is running, or ''."""
        if self.status["phase"] == "failed":
            return f"The run failed: {self.status['why']}"
        if self.over or has_server_app:
            return ""
        return "No server app is running: the run has ended early. 'fedbm federation run' resumes it."


def read_status(folder: Path) -> RunStatus | None:
    """Return the latest run of the server in *folder*, or None if there was none yet."""
    path = folder / "state" / "status.json"
    if not path.exists():
        return None
    status = read_object(path, FORMAT)
    return RunStatus(status, read_rounds(folder / "state" / "runs" / str(status["run"]) / "rounds.jsonl"))


def seconds_since(moment: str, now: datetime | None = None) -> float:
    return ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()


def format_duration(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def format_age(moment: str | None, now: datetime | None = None) -> str:
    """Return how long ago a time of status.json is, such as '12 s ago'."""
    if not moment:
        return "not yet"
    seconds = max(0.0, seconds_since(moment, now))
    return f"{seconds:.0f} s ago" if seconds < 60 else f"{format_seconds(seconds)} ago"
