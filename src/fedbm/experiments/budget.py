"""Whether a run, or a round, would end within what is left of a budget. A run, by the pace of those played in it:

    seconds a round · rounds left · (runs beside it + 1) / runs that go together  ≤  seconds left

Seconds a round of its kind, where s are those of this portion and r those on record:

    s[kind]  or  r[kind] · mean over kinds in both of s/r (1 without any)  or  max s

Before anything is known a run fits: it will tell. A round, by the run's latest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedbm.experiments.estimate import LEAST_ROUNDS, Rates, kind_of, rounds_left
from fedbm.runs.config import Config
from fedbm.runs.timing_log import Portion

Kind = tuple[Any, ...]


@dataclass
class LastRounds:
    """(number of a run) → whether its next round, if as long as its latest, would end after the budget.

    Then it ends with the round it is in, for which a tenth of the budget at most is kept. *said*: of one it was so.
    """

    budget: float | None
    portion: Portion
    latest: dict[int, float] = field(default_factory=dict)  # seconds of each run's latest round
    said: bool = False

    def __call__(self, number: int) -> bool:
        if self.budget is None:
            return False
        last = self.portion.so_far() > self.budget - min(self.latest.get(number, 0.0), self.budget / 10)
        self.said |= last
        return last

    def left(self) -> float | None:
        """Seconds of the budget."""
        return None if self.budget is None else self.budget - self.portion.so_far()

    @property
    def over(self) -> bool:
        """Whether a run had to end because of the budget."""
        left = self.left()
        return self.said or (left is not None and left <= 0)


def fitting(
    runs: Sequence[tuple[Path, Config]], together: int, budget: float, portion: Portion, recorded: Rates
) -> Callable[[int, int], bool]:
    """(number of a run, runs beside it) → whether it would end within *budget* seconds of *portion*."""
    kinds = {folder.name: kind_of(config) for folder, config in runs}
    rounds = [rounds_left(folder, config) for folder, config in runs]

    def may_begin(number: int, beside: int) -> bool:
        kind, left = kinds[runs[number][0].name], budget - portion.so_far()
        pace = pace_of(kind, paces(portion, kinds), recorded)
        return pace is None or fits(pace, rounds[number], beside, together, left)

    return may_begin


def paces(portion: Portion, kinds: Mapping[str, Kind]) -> dict[Kind, float]:
    """Mean seconds a round by kind, of the runs that *portion* has rounds of; *kinds* by the run's id."""
    totals: dict[Kind, tuple[int, float]] = {}
    for run, rounds in portion.rounds.items():
        if rounds >= LEAST_ROUNDS:
            known, seconds = totals.get(kinds[run], (0, 0.0))
            totals[kinds[run]] = known + rounds, seconds + portion.seconds[run]
    return {kind: seconds / rounds for kind, (rounds, seconds) in totals.items()}


def pace_of(kind: Kind, played: Rates, recorded: Rates) -> float | None:
    """Seconds a round; None where nothing tells.

    >>> played, recorded = {("a",): 3.0, ("b",): 9.0}, {("a",): 1.5, ("c",): 2.0}
    >>> [pace_of((kind,), played, recorded) for kind in "abcd"]  # all go at half the pace they had
    [3.0, 9.0, 4.0, 9.0]
    """
    if kind in played:
        return played[kind]
    if recorded.get(kind):
        slower = [seconds / recorded[known] for known, seconds in played.items() if recorded.get(known)]
        return recorded[kind] * (fmean(slower) if slower else 1.0)
    return max(played.values(), default=None)


def fits(pace: float, rounds: int, beside: int, together: int, left: float) -> bool:
    """Whether so many rounds would end in *left* seconds, with so many runs *beside* this one.

    >>> [fits(1.0, 100, beside, 4, 60.0) for beside in range(4)]
    [True, True, False, False]
    """
    return pace * rounds * (beside + 1) / together <= left
