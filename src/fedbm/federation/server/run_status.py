"""Where a run stands, for the operator: status.json as the server app writes it, and the records of its rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.utils.io import read_json

FORMAT = 1
PHASES = {"census": "asking who is there", "train": "training", "aggregate": "averaging", "evaluate": "evaluating"}
RECENT = 10  # rounds whose mean is the guess for those to come


@dataclass(frozen=True)
class Standing:
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
    def seconds_a_round(self) -> float | None:
        latest = [float(record["seconds"]["total"]) for record in self.rounds[-RECENT:]]
        return sum(latest) / len(latest) if latest else None

    @property
    def seconds_left(self) -> float | None:
        """A guess: the rounds to come take as long as the latest did."""
        left = int(self.status["rounds"]) - len(self.rounds)
        mean = self.seconds_a_round
        return None if mean is None else mean * max(0, left)

    def curve(self, side: str = "val") -> list[tuple[int, float]]:
        """(round, accuracy) of every evaluated round."""
        return [(int(r["round"]), float(r[side]["accuracy"])) for r in self.rounds if r.get(side)]

    def remark(self, at_work: bool) -> str:
        """What the phase alone does not say: why the run failed, or that no server app is *at_work* on it."""
        if self.status["phase"] == "failed":
            return f"it failed: {self.status['why']}"
        if self.over or at_work:
            return ""
        return "nobody is at work on it: its server app has ended; 'fedbm federation run' continues with it"

    def age(self, now: datetime | None = None) -> float:
        """Seconds since the server app last wrote."""
        return ((now or datetime.now(UTC)) - datetime.fromisoformat(self.status["updated"])).total_seconds()


def read_standing(folder: Path) -> Standing | None:
    """The latest run of the server in *folder*, or None where there was none yet."""
    path = folder / "state" / "status.json"
    if not path.exists():
        return None
    status = read_json(path)
    if status.get("format") != FORMAT:
        raise FedBMError(f"{path} has format {status.get('format')}; this version of fedbm reads format {FORMAT}")
    return Standing(status, tuple(_records(folder / "state" / "runs" / str(status["run"]) / "rounds.jsonl")))


def _records(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's records; the last may still be half."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def clock(seconds: float | None) -> str:
    """'1:02:03', or '–' where it is not known."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def ago(moment: str | None, now: datetime | None = None) -> str:
    """'12 s ago', from a time as status.json has it."""
    if not moment:
        return "not yet"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()
    return f"{max(0, seconds):.0f} s ago" if seconds < 120 else f"{clock(seconds)} ago"
