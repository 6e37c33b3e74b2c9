"""What it takes to reach a given accuracy: rounds and bytes until a run's test accuracy first is that high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedbm.report.cost import show_bytes
from fedbm.report.grouping import Group, Row
from fedbm.report.statistics import spread
from fedbm.report.text import percent
from fedbm.runs.reader import RunView


@dataclass(frozen=True)
class ReachLine:
    name: str
    reached: str  # "3 of 3"
    rounds: str
    traffic: str


@dataclass(frozen=True)
class Reach:
    target: str
    looked: str  # after which rounds scores are known
    lines: tuple[ReachLine, ...]


def reach(group: Group) -> Reach | None:
    """The accuracy is what FedAvg has at its chosen round, or else the lowest row; None for a single row."""
    rows = [row for row in group.rows if row.method != "central"]
    if len(rows) < 2:
        return None
    means = {row.name: (score.mean if (score := row.score("best", "accuracy")) else 0.0) for row in rows}
    base = next((row for row in rows if row.method == "fedavg"), min(rows, key=lambda row: means[row.name]))
    target = means[base.name]
    words = f"{percent(target)} %, what {base.name} has at the round chosen on validation"
    return Reach(words, _looked([run for row in rows for run in row.runs]), tuple(_line(row, target) for row in rows))


def _looked(runs: Sequence[RunView]) -> str:
    """A run need not be evaluated after every round, nor does a record keep all: what happened between is not seen."""
    tested = [[record["round"] for record in run.rounds if record["test"]] for run in runs]
    steps = [after - before for rounds in tested for before, after in pairwise([0, *rounds])]
    return "every round" if max(steps, default=1) == 1 else f"at most every {max(steps)} rounds"


def first_reached(run: RunView, target: float) -> tuple[int, float] | None:
    """(round, bytes both ways so far) of the first evaluated round with test accuracy ≥ target."""
    traffic = 0.0
    for record in run.rounds:
        traffic += record["bytes"]["sent"] + record["bytes"]["received"]
        if record["test"] and record["test"]["accuracy"] >= target:
            return int(record["round"]), traffic
    return None


def _line(row: Row, target: float) -> ReachLine:
    found = [first for run in row.runs if (first := first_reached(run, target))]
    reached = f"{len(found)} of {len(row.runs)}"
    if not found:
        return ReachLine(row.name, reached, "not reached", "not reached")
    rounds = sorted(number for number, _ in found)
    shown = str(rounds[0]) if rounds[0] == rounds[-1] else f"{rounds[0]}–{rounds[-1]}"
    return ReachLine(row.name, reached, shown, show_bytes(spread([traffic for _, traffic in found]).mean))
