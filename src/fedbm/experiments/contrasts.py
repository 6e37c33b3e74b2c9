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
from typing import Any

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.trials import Trial
from fedbm.utils.statistics import Paired, holm, paired, sign_flip

HEADLINE_METRIC = "f1"


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


def hide_withheld(outcome: Outcome) -> Outcome:
    """Return *outcome* without the runs that are withheld; each is missing, with the reason."""
    own = outcome.withheld
    results = [
        replace(result, state="withheld", why=why, run=None, last=None)
        if (result.run is not None or result.last is not None) and (why := own or outcome.hidden.get(result.id, ""))
        else result
        for result in outcome.results
    ]
    return replace(outcome, results=tuple(results))


def compute_contrasts(outcome: Outcome, cells: Sequence[Mapping[str, Any]]) -> list[tuple[Contrast, ...]]:
    """Return the contrasts of every cell, () for an experiment without contrasts."""
    if outcome.analysis is None:
        return [()] * len(cells)
    found = [tuple(_contrast(outcome, at, *pair) for pair in outcome.analysis.contrasts) for at in cells]
    if not outcome.analysis.confirmatory:
        return found
    every = [contrast for some in found for contrast in some]
    # a test without a p value (no spread, too few seeds, or no score) still counts as one of the planned tests
    corrected = holm([1.0 if c.found is None or c.found.p is None else c.found.p for c in every])
    tested = [
        replace(c, corrected=p if c.found else None, tests=len(every)) for c, p in zip(every, corrected, strict=True)
    ]
    size = len(outcome.analysis.contrasts)
    return [tuple(tested[start : start + size]) for start in range(0, len(tested), size)]


def pool_clusters(differences: Iterable[tuple[str, int, float]]) -> Paired | None:
    """Return the mean difference over cells with a 95 % interval; None without differences.

    Runs of one data set at one seed share images and random numbers, whatever their cells are. They are one cluster c,
    and D_c is the mean of its differences. With C clusters, the mean is ΣD_c / C, and the interval is
    mean ± t(0.975, C − 1)·std(D_c) / √C. A data set with more seeds has more clusters and so a larger weight.

    Args:
        differences: (data set, seed, difference) for every cell and seed.
    """
    clusters: dict[tuple[str, int], list[float]] = {}
    for data, seed, difference in differences:
        clusters.setdefault((data, seed), []).append(difference)
    means = dict(enumerate(map(fmean, clusters.values())))
    return paired(means, dict.fromkeys(means, 0.0))


def _contrast(outcome: Outcome, at: Mapping[str, Any], first: str, second: str) -> Contrast:
    plan = outcome.analysis
    assert plan is not None
    x, y = (_scores(outcome.cell(row, at), plan.moment) for row in (first, second))
    chosen = paired(*(_scores(outcome.cell(row, at), "best") for row in (first, second)))
    return Contrast(
        first,
        second,
        plan.endpoint,
        tested=plan.confirmatory,
        by_seed={seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())},
        found=paired(x, y),
        chosen=chosen if plan.moment != "best" else None,
        sign_flip=sign_flip(x, y) if plan.confirmatory else None,
    )


def _scores(results: Sequence[Trial], moment: str) -> dict[int, float]:
    """Return macro-F1 by seed; a diverged run counts with its last score at every moment."""
    found = {r.seed: r.run.scores(moment) if r.run is not None else r.last for r in results}
    known = {seed: scores[HEADLINE_METRIC] for seed, scores in found.items() if scores is not None}
    return {seed: score for seed, score in known.items() if score is not None}
