"""Compute differences in macro-F1 between two rows of a group, over the seeds that both have.

Without a plan, the leading row is tested against every other row except central training, at every moment: paired
t-tests, with Holm's correction over all groups for which there are data. So a corrected p can rise when more runs
finish.

With a plan, the experiment states its contrasts: first row − second row at its endpoint. A confirmatory experiment
tests them: two-sided paired t-tests with Holm's correction over exactly these contrasts in all cells. The exact
sign-flip test is also reported but does not decide. Other experiments only have intervals. A diverged run counts with
the last evaluated scores of its averaged model, or with 0.

Differences in several cells can be pooled. This is exploratory and never a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean

from fedbm.experiments.spec import AnalysisPlan
from fedbm.report.group import MOMENTS, Contrast, Group, GroupRow, Test
from fedbm.utils.statistics import Paired, holm, paired, sign_flip


def test_rivals(groups: Sequence[Group]) -> list[Group]:
    """Test each leading row against its rivals, at every moment with Holm's correction over all groups."""
    tests: dict[tuple[int, str], dict[str, Test]] = {}
    for moment in MOMENTS:
        found = {
            (place, row.name): difference
            for place, group in enumerate(groups)
            for row in group.rows
            if row.rival and (lead := group.leading) is not None
            if (difference := paired(lead.by_seed(moment), row.by_seed(moment))) is not None
        }
        corrected = holm([difference.p for difference in found.values()])
        for (key, difference), p in zip(found.items(), corrected, strict=True):
            tests.setdefault(key, {})[moment] = Test(difference, p)
    number = sum("best" in by_moment and by_moment["best"].paired.p is not None for by_moment in tests.values())
    return [
        replace(one, tests=number, rows=tuple(replace(row, tests=tests.get((place, row.name), {})) for row in one.rows))
        for place, one in enumerate(groups)
    ]


def add_contrasts(plan: AnalysisPlan | None, groups: Sequence[Group]) -> list[Group]:
    """Return the groups with the contrasts that the plan states, tested if it is confirmatory."""
    if plan is None:
        return list(groups)
    found = [_contrast(plan, *map(group.row, names)) for group in groups for names in plan.contrasts]
    if plan.confirmatory:
        # a test without a p value (no spread, too few seeds, or no score) still counts as one of the planned tests
        corrected = holm([1.0 if one.found is None or one.found.p is None else one.found.p for one in found])
        found = [
            replace(one, corrected=p if one.found else None, tests=len(found))
            for one, p in zip(found, corrected, strict=True)
        ]
    number = len(plan.contrasts)
    return [
        replace(group, contrasts=tuple(found[number * place : number * (place + 1)]))
        for place, group in enumerate(groups)
    ]


def _contrast(plan: AnalysisPlan, first: GroupRow, second: GroupRow) -> Contrast:
    x, y = (row.at_endpoint(plan.moment) for row in (first, second))
    return Contrast(
        first.name,
        second.name,
        plan.endpoint,
        by_seed={seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())},
        found=paired(x, y),
        chosen=paired(first.at_endpoint("best"), second.at_endpoint("best")) if plan.moment != "best" else None,
        sign_flip=sign_flip(x, y) if plan.confirmatory else None,
    )


def pool_cells(groups: Sequence[Group]) -> dict[str, tuple[int, Paired]]:
    """Return name → (cells, pooled difference) for the differences lead − row that several cells have."""
    cells_of: dict[str, list[list[tuple[str, int, float]]]] = {}  # name → data set, seed and difference, cell by cell
    for group in groups:
        ours = group.leading.by_seed() if group.leading else {}
        for row in group.rows:
            differences = [(group.data, s, ours[s] - score) for s, score in row.by_seed().items() if s in ours]
            if row.rival and differences:
                cells_of.setdefault(f"{group.lead} − {row.name}", []).append(differences)
    return {
        name: (len(some), pooled)
        for name, some in cells_of.items()
        if len(some) > 1 and (pooled := pool_clusters(chain(*some)))
    }


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
