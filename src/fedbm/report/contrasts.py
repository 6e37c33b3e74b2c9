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
from fedbm.report.group import MOMENTS, Contrast, Group, GroupRow
from fedbm.utils.statistics import Paired, holm, paired, sign_flip


def test_rivals(groups: Sequence[Group]) -> list[Group]:
    """Test each leading row against its rivals, at every moment with Holm's correction over all groups."""
    tests: dict[tuple[int, str], dict[str, Contrast]] = {}
    for moment in MOMENTS:
        found = {
            (place, row.name): contrast
            for place, group in enumerate(groups)
            for row in group.rows
            if row.rival and group.leading and (contrast := _contrast(group.leading, row, moment)).found
        }
        ps = [contrast.paired.p for contrast in found.values()]
        for key, contrast in zip(found, _correct([*found.values()], ps), strict=True):
            tests.setdefault(key, {})[moment] = contrast
    return [
        replace(group, rows=tuple(replace(row, tests=tests.get((place, row.name), {})) for row in group.rows))
        for place, group in enumerate(groups)
    ]


def add_contrasts(plan: AnalysisPlan | None, groups: Sequence[Group]) -> list[Group]:
    """Return the groups with the contrasts that the plan states, tested if it is confirmatory."""
    if plan is None:
        return list(groups)
    found = [_stated(plan, *map(group.row, names)) for group in groups for names in plan.contrasts]
    if plan.confirmatory:
        # a test without a p value (no spread, too few seeds, or no score) still counts as one of the planned tests
        found = _correct(found, [1.0 if one.found is None or one.found.p is None else one.found.p for one in found])
    number = len(plan.contrasts)
    return [
        replace(group, contrasts=tuple(found[number * place : number * (place + 1)]))
        for place, group in enumerate(groups)
    ]


def _stated(plan: AnalysisPlan, first: GroupRow, second: GroupRow) -> Contrast:
    made = _contrast(first, second, plan.moment)
    return replace(
        made,
        endpoint=plan.endpoint,
        chosen=_contrast(first, second, "best").found if plan.moment != "best" else None,
        sign_flip=sign_flip(made.by_seed, dict.fromkeys(made.by_seed, 0.0)) if plan.confirmatory else None,
    )


def _contrast(first: GroupRow, second: GroupRow, moment: str) -> Contrast:
    x, y = (row.at_endpoint(moment) for row in (first, second))
    by_seed = {seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())}
    return Contrast(first.name, second.name, moment, by_seed, paired(x, y))


def _correct(contrasts: Sequence[Contrast], ps: Sequence[float | None]) -> list[Contrast]:
    """Correct these p values by Holm. None does not count."""
    tests = sum(p is not None for p in ps)
    return [
        replace(one, corrected=p if one.found else None, tests=tests)
        for one, p in zip(contrasts, holm(ps), strict=True)
    ]


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
