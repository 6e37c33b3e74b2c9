"""Estimate how long the remaining runs of an experiment take on this device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from fedbm.engine.checkpoint import rounds_behind
from fedbm.errors import FedBMError
from fedbm.experiments.trials import DONE, Trial
from fedbm.runs.run_record import read_record
from fedbm.runs.run_view import RunView, read_run
from fedbm.utils.text import format_seconds


class Estimate(NamedTuple):
    """How many runs remain, and the seconds that those take for which a rate is known."""

    remaining: int
    timed: int
    seconds: float | None

    def __str__(self) -> str:
        """Return a line such as "12 runs remain, about 25 min on this device", or "" if no run remains."""
        if not self.remaining:
            return ""
        line = "1 run remains" if self.remaining == 1 else f"{self.remaining} runs remain"
        if self.seconds is None:
            return line
        some = "" if self.timed == self.remaining else f" for {self.timed} of them"
        return f"{line}, about {format_seconds(self.seconds)} on this device{some}"


def estimate_remaining(states: Sequence[Trial], out: Path, records: Path, device: str, parallel: int) -> Estimate:
    """Estimate how long the remaining runs take.

    The time is rounds × seconds per round ÷ runs in parallel. Seconds per round are the median over finished runs and
    records of the same method on the same data and device. Runs without such a record are not in the time.
    """
    remaining = {s.folder: s for s in states if s.folder is not None and s.state not in DONE}
    rates = seconds_per_round(_read_all(out, records), device) if remaining else {}
    known = [
        rate * (s.config.train.rounds - rounds_behind(folder))
        for folder, s in remaining.items()
        if (rate := rates.get((Path(s.config.data.name).stem, s.config.method.name)))
    ]
    seconds = sum(known) / min(parallel, len(known)) if known else None
    return Estimate(len(remaining), len(known), seconds)


def seconds_per_round(runs: Iterator[RunView], device: str) -> dict[tuple[str, str], float]:
    """Return the median seconds per round of finished runs on *device* by (data set, method)."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for run in runs:
        if run.summary is not None and (run.environment or {}).get("device") == device:
            found.setdefault((run.data, run.method), {})[run.id] = run.summary.seconds / run.summary.rounds
    return {key: median(by_id.values()) for key, by_id in found.items()}


def _read_all(out: Path, records: Path) -> Iterator[RunView]:
    """Read every run and record that can be read; other commands name those that cannot."""
    for path in sorted(out.glob("*/config.toml")):
        with suppress(FedBMError):
            yield read_run(path.parent)
    for path in sorted(records.glob("runs/*.json")):
        with suppress(FedBMError):
            yield read_record(path)
