"""portions.jsonl beside the runs: what each stretch of computing took, so that the next can be foretold.

One line per portion: wall-clock seconds, the device, and for every run the rounds it played and their seconds. Runs
that share a device overlap, so a run's own time on it is its share: wall · seconds_i / Σ seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedbm.errors import FedBMError
from fedbm.runs.record_schemas import PORTION
from fedbm.utils.io import atomic_write
from fedbm.utils.schema import check

NAME = "portions.jsonl"
KEPT = ("device", "wall", "rounds", "seconds")  # of a portion in the file
EXPENDABLE = "; remove it, nothing but estimates depends on it"


@dataclass
class Portion:
    """One stretch: *rounds* and *seconds* by the run's id."""

    device: str
    wall: float = 0.0
    rounds: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic, repr=False)
    path: Path | None = field(default=None, repr=False)  # the file of all portions
    saved: str = field(default="", repr=False)  # the line of this one in it

    def so_far(self) -> float:
        return time.monotonic() - self.began

    def played(self, run: str, seconds: float) -> None:
        self.rounds[run] = self.rounds.get(run, 0) + 1
        self.seconds[run] = self.seconds.get(run, 0.0) + seconds

    def save(self) -> None:
        """What was played so far, as one line of the file, beside those of others; nothing where nothing was."""
        self.wall = self.so_far()
        if self.path is not None and self.rounds:
            there = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
            line = json.dumps({key: getattr(self, key) for key in KEPT}) + "\n"
            with atomic_write(self.path) as temporary:
                temporary.write_text((there.replace(self.saved, "") if self.saved else there) + line, encoding="utf-8")
            self.saved = line

    @property
    def overlap(self) -> float:
        """How many seconds of rounds went into one of the clock; start-up counts against it."""
        return sum(self.seconds.values()) / self.wall if self.wall > 0 else 1.0

    def share(self, run: str) -> float:
        """The run's own part of the wall-clock time."""
        return self.seconds.get(run, 0.0) / self.overlap if self.overlap else 0.0


@contextmanager
def measured(out: Path, device: str) -> Iterator[Portion]:
    """A portion to fill; however it ends, it is added to those of *out*: killed, as it was when last saved."""
    portion = Portion(device, path=out / NAME)
    try:
        yield portion
    finally:
        portion.save()


def device_name(device: torch.device) -> str:
    """As environment.json calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def read_portions(out: Path) -> list[Portion]:
    path = out / NAME
    if not path.is_file():
        return []
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise FedBMError(f"{path} is damaged: {error}{EXPENDABLE}") from error
    for number, one in enumerate(found, 1):
        check(one, PORTION, f"line {number} of {path}", EXPENDABLE)
    return [Portion(**{key: one[key] for key in KEPT}) for one in found]


def own_seconds(portions: Sequence[Portion], run: str, rounds: int) -> float | None:
    """What so many rounds of a run took of its device; None where portions do not know of them all.

    A round lost before its checkpoint and played again is known twice: rounds · Σ share / played counts it once.
    """
    played = sum(portion.rounds.get(run, 0) for portion in portions)
    if not rounds or played < rounds:
        return None  # played elsewhere, or in a portion that was killed
    return rounds * sum(portion.share(run) for portion in portions) / played


def speed(portions: Sequence[Portion], device: str) -> float | None:
    """The overlap of the last portion on *device*; None where there was none."""
    return next((portion.overlap for portion in reversed(portions) if portion.device == device), None)
