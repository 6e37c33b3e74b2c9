"""Whether a run would end within what is left of a budget, by the pace of those that were played in it:

    seconds a round · rounds left · (runs beside it + 1) / runs that go together  ≤  seconds left

The pace is that of runs of its kind or, where none was played, of the slowest kind. Before anything is known a run
fits: it will tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbm.config import Config
from fedbm.experiments.estimate import LEAST_ROUNDS, kind_of, rounds_left
from fedbm.results.portions import Portion

Kind = tuple[Any, ...]


def fitting(
    runs: Sequence[tuple[Path, Config]], together: int, budget: float, portion: Portion
) -> Callable[[int, int], bool]:
    """(number of a run, runs beside it) → whether it would end within *budget* seconds of *portion*."""
    kinds = {folder.name: kind_of(config) for folder, config in runs}
    rounds = [rounds_left(folder, config) for folder, config in runs]

    def may_begin(number: int, beside: int) -> bool:
        kind, left = kinds[runs[number][0].name], budget - portion.so_far()
        return fits(kind, rounds[number], beside, together, left, paces(portion, kinds))

    return may_begin


def paces(portion: Portion, kinds: Mapping[str, Kind]) -> dict[Kind, float]:
    """Mean seconds a round by kind, of the runs that *portion* has rounds of; *kinds* by the run's id."""
    totals: dict[Kind, tuple[int, float]] = {}
    for run, rounds in portion.rounds.items():
        if rounds >= LEAST_ROUNDS:
            known, seconds = totals.get(kinds[run], (0, 0.0))
            totals[kinds[run]] = known + rounds, seconds + portion.seconds[run]
    return {kind: seconds / rounds for kind, (rounds, seconds) in totals.items()}


def fits(kind: Kind, rounds: int, beside: int, together: int, left: float, known: Mapping[Kind, float]) -> bool:
    """Whether so many rounds would end in *left* seconds, with so many runs *beside* this one.

    >>> [fits(("a",), 100, beside, 4, 60.0, {("a",): 1.0, ("b",): 9.0}) for beside in range(4)]
    [True, True, False, False]
    """
    if not known:
        return True
    return known.get(kind, max(known.values())) * rounds * (beside + 1) / together <= left
