"""Compute the contrasts that an experiment states: first row − second row at its endpoint, over the seeds both have.

A confirmatory experiment tests them: two-sided paired t-tests with Holm's correction over exactly these contrasts in
all cells. The exact sign-flip test is also reported but does not decide. Other experiments only have intervals.
A diverged run counts with the last evaluated scores of its averaged model, or with 0.

Differences in several cells can be pooled. This is exploratory and never a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from fedbm.experiments.spec import AnalysisPlan
from fedbm.utils.statistics import Paired, holm, paired, sign_flip

if TYPE_CHECKING:
    from fedbm.report.comparison import ComparedRow


@dataclass(frozen=True)
class Contrast:
    """One difference in one cell."""

    first: str
    second: str
    endpoint: str
    tested: bool
    by_seed: Mapping[int, float]  # the difference within each seed that has both rows
    found: Paired | None  # None: no seed has both rows
    chosen: Paired | None  # the same difference at the round chosen on validation, if the endpoint is another
    sign_flip: float | None
    corrected: float | None = None  # p after Holm's correction
    tests: int = 0  # number of tests in the correction

    @property
    def name(self) -> str:
        return f"{self.first} − {self.second}"


def compute_contrasts(plan: AnalysisPlan | None, cells: Sequence[Mapping[str, ComparedRow]]) -> list[list[Contrast]]:
    """Return the contrasts of every cell, [] without a plan. A cell has its rows by name."""
    if plan is None:
        return [[] for _ in cells]
    found = [[_contrast(plan, rows[first], rows[second]) for first, second in plan.contrasts] for rows in cells]
    if not plan.confirmatory:
        return found
    every = [contrast for some in found for contrast in some]
    # a test without a p value (no spread, too few seeds, or no score) still counts as one of the planned tests
    corrected = holm([1.0 if one.found is None or one.found.p is None else one.found.p for one in every])
    tested = iter(
        replace(one, corrected=p if one.found else None, tests=len(every))
        for one, p in zip(every, corrected, strict=True)
    )
    return [[next(tested) for _ in plan.contrasts] for _ in cells]


def pool_clusters(differences: Iterable[tuple[str, int, float]]) -> Paired | None:
    """Return the mean over cells of (data set, seed, difference) with a 95 % interval; None without differences.

    Runs of one data set at one seed share images and random numbers, whatever their cells are. They are one cluster c,
    and D_c is the mean of its differences. With C clusters, the mean is ΣD_c / C, and the interval is
    mean ± t(0.975, C − 1)·std(D_c) / √C. A data set with more seeds has more clusters and so a larger weight.
    """
    clusters: dict[tuple[str, int], list[float]] = {}
    for data, seed, difference in differences:
        clusters.setdefault((data, seed), []).append(difference)
    return mean_with_interval(dict(enumerate(map(fmean, clusters.values()))))


def mean_with_interval(scores: Mapping[int, float]) -> Paired | None:
    """Return the mean with its 95 % interval; None without a score."""
    return paired(scores, dict.fromkeys(scores, 0.0))


def _contrast(plan: AnalysisPlan, first: ComparedRow, second: ComparedRow) -> Contrast:
    x, y = (row.at_endpoint(plan.moment) for row in (first, second))
    return Contrast(
        first.name,
        second.name,
        plan.endpoint,
        tested=plan.confirmatory,
        by_seed={seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())},
        found=paired(x, y),
        chosen=paired(first.at_endpoint("best"), second.at_endpoint("best")) if plan.moment != "best" else None,
        sign_flip=sign_flip(x, y) if plan.confirmatory else None,
    )
