"""Compare the rows of one table: scores over seeds, the paper's numbers, and tests of the leading row.

The leading row is the row that the experiment names, else FedBM, else the first row of the first contrast, else the
first row. The choice does not depend on scores. A paired t-test over seeds compares the leading row's macro-F1 with
every other row except central training. Holm's correction covers the tests in all cells of an experiment, or of one
group of runs, for which there are data, so a corrected p can rise when more runs finish. An experiment that states
contrasts has contrasts instead of tests (`report/contrasts.py`). A search has neither, because the test images
must not influence its choice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedbm.data.catalog.entries import CATALOG
from fedbm.experiments.outcomes import Outcome, hide_withheld
from fedbm.experiments.paper_numbers import Published, find_deviations, find_published
from fedbm.experiments.spec import ENDPOINTS, cells
from fedbm.experiments.trials import Trial
from fedbm.methods import METHODS, FedAvg, FedBM, is_central
from fedbm.report.contrasts import Contrast, compute_contrasts, pool_clusters
from fedbm.report.grouping import Group, MethodRuns
from fedbm.utils.statistics import Paired, holm, paired

HEADLINE_METRIC = "f1"
MOMENTS = ("best", "last", "last_quarter", "averaged", "averaged_last_quarter")  # of RunView.scores()
CENTRAL = tuple(method.title for method in METHODS.values() if method.central)


@dataclass(frozen=True)
class Test:
    """Leading row − this row."""

    paired: Paired
    corrected: float | None  # p after Holm's correction


@dataclass(frozen=True)
class ComparedRow(MethodRuns):
    """One row of a comparison: finished runs, missing results, the paper's number, and tests by moment."""

    missing: tuple[Trial, ...] = ()
    published: Published | None = None
    deviations: tuple[tuple[str, str], ...] = ()
    rival: bool = False  # whether the leading row is tested against it
    tests: Mapping[str, Test] = field(default_factory=dict)

    def minus_paper(self, metric: str) -> float | None:
        """Return ours − the paper's; None if one of them is missing."""
        score = self.score("best", metric)
        if score is None or self.published is None:
            return None
        return score.mean - self.published.mean[metric]

    def at_endpoint(self, moment: str) -> dict[int, float]:
        """Return macro-F1 by seed; a diverged run counts with its last score, as it does in contrasts."""
        diverged = {r.seed: r.last[HEADLINE_METRIC] for r in self.missing if r.last is not None}
        return self.by_seed(moment) | diverged

    @property
    def state(self) -> str:
        """Why there is no number: 'not run', 'failed', …"""
        words = {"absent": "data or model not here"}
        return "; ".join(dict.fromkeys(words.get(result.state, result.state) for result in self.missing))


@dataclass(frozen=True)
class ComparedGroup:
    """Rows under one setting: one data set, one partition, one value of every axis."""

    title: str
    rows: tuple[ComparedRow, ...]
    lead: str  # the name of the leading row; "" if no run is finished
    group: Group
    data: str = ""  # the name of the data set
    at: Mapping[str, Any] = field(default_factory=dict)
    tests: int = 0  # how many tests Holm's correction covers in all comparisons of the experiment
    contrasts: tuple[Contrast, ...] = ()  # stated by the experiment, in place of tests

    @property
    def leading(self) -> ComparedRow | None:
        return next((row for row in self.rows if row.name == self.lead), None)

    @property
    def moment(self) -> str:
        """The moment of the stated endpoint, else the round chosen on validation."""
        return ENDPOINTS[self.contrasts[0].endpoint] if self.contrasts else "best"

    @property
    def ladder(self) -> list[Contrast]:
        """The first contrasts, if each starts where the one before it ends, from the baseline to the leading row."""
        steps: list[Contrast] = []
        for one in self.contrasts:
            if one.second != (steps[-1].first if steps else self.baseline.name):
                break
            steps.append(one)
        return steps if len(steps) > 1 and steps[-1].first == self.lead else []

    @property
    def baseline(self) -> ComparedRow:
        """FedAvg, or else the first row."""
        return next((row for row in self.rows if row.name == FedAvg.title), self.rows[0])

    def paper_difference(self, row: ComparedRow) -> float | None:
        """Return leading row − *row* in the paper's macro-F1; None if it does not print both."""
        lead = self.leading
        if lead is None or lead.published is None or row.published is None:
            return None
        return lead.published.mean[HEADLINE_METRIC] - row.published.mean[HEADLINE_METRIC]


def compare_runs(group: Group) -> ComparedGroup:
    """Return a group of runs as a comparison."""
    lead = leading_row([row.name for row in group.rows], [row.name for row in group.rows if row.central])
    rows = tuple(
        ComparedRow(row.name, row.method, row.runs, rival=row.name != lead and not row.central) for row in group.rows
    )
    (made,) = _test([ComparedGroup(group.title, rows, lead, group, group.runs[0].data if group.runs else "")])
    return made


def compare_outcome(outcome: Outcome) -> list[ComparedGroup]:
    """Return a comparison for every cell of an experiment. Withheld runs are missing."""
    outcome = hide_withheld(outcome)
    central = {*CENTRAL, *(r.row for r in outcome.results if r.run is not None and is_central(r.run.method))}
    firsts = [first for first, _ in outcome.analysis.contrasts] if outcome.analysis else []
    lead = leading_row([*firsts, *outcome.rows], central, outcome.lead)
    found = _test([_cell(outcome, at, lead, central) for at in cells(outcome.axes)])
    contrasts = compute_contrasts(outcome.analysis, [{row.name: row for row in c.rows} for c in found])
    return [replace(c, contrasts=tuple(stated)) for c, stated in zip(found, contrasts, strict=True)]


def leading_row(names: Sequence[str], central: Collection[str], named: str = "") -> str:
    """Return the named row, else FedBM or its first variant, else the first; central training only if it is alone."""
    if named or not names:
        return named
    rivals = [name for name in names if name not in central] or list(names)
    title = FedBM.title
    return next((n for n in rivals if n == title), next((n for n in rivals if n.startswith(f"{title} · ")), rivals[0]))


def _cell(outcome: Outcome, at: Mapping[str, Any], lead: str, central: Collection[str]) -> ComparedGroup:
    settings = {"data": "digits", "beta": None, **outcome.shared, **at}
    data = Path(str(settings["data"])).stem
    rows = []
    for name in outcome.rows:
        results = outcome.cell(name, at)
        runs = tuple(replace(result.run, label=name) for result in results if result.run is not None)
        rows.append(
            ComparedRow(
                name,
                runs[0].method if runs else "",
                runs,
                missing=tuple(result for result in results if result.run is None),
                published=find_published(outcome.paper, data, settings["beta"], name),
                deviations=tuple(find_deviations(outcome.name, name, data)) if runs else (),
                rival=not (outcome.analysis or outcome.search) and name not in (lead, *central),
            )
        )
    title = ", ".join([data_title(data), *setting_words(outcome, at)])
    finished = tuple(row for row in rows if row.runs)
    return ComparedGroup(title, tuple(rows), lead if finished else "", Group(title, finished, ()), data, at)


def _test(comparisons: Sequence[ComparedGroup]) -> list[ComparedGroup]:
    """Test each leading row against its rivals, at every moment with Holm's correction over all comparisons."""
    tests: dict[tuple[int, str], dict[str, Test]] = {}
    for moment in MOMENTS:
        found = {
            (place, row.name): difference
            for place, comparison in enumerate(comparisons)
            for row in comparison.rows
            if row.rival and (lead := comparison.leading) is not None
            if (difference := paired(lead.by_seed(moment), row.by_seed(moment))) is not None
        }
        corrected = holm([difference.p for difference in found.values()])
        for (key, difference), p in zip(found.items(), corrected, strict=True):
            tests.setdefault(key, {})[moment] = Test(difference, p)
    number = sum("best" in by_moment and by_moment["best"].paired.p is not None for by_moment in tests.values())
    return [
        replace(c, tests=number, rows=tuple(replace(row, tests=tests.get((place, row.name), {})) for row in c.rows))
        for place, c in enumerate(comparisons)
    ]


def pool_cells(found: Sequence[ComparedGroup]) -> dict[str, tuple[int, Paired]]:
    """Return name → (cells, pooled difference) for the differences lead − row that several cells have."""
    cells_of: dict[str, list[list[tuple[str, int, float]]]] = {}  # name → data set, seed and difference, cell by cell
    for comparison in found:
        ours = comparison.leading.by_seed() if comparison.leading else {}
        for row in comparison.rows:
            differences = [(comparison.data, s, ours[s] - score) for s, score in row.by_seed().items() if s in ours]
            if row.rival and differences:
                cells_of.setdefault(f"{comparison.lead} − {row.name}", []).append(differences)
    return {
        name: (len(some), pooled)
        for name, some in cells_of.items()
        if len(some) > 1 and (pooled := pool_clusters(chain(*some)))
    }


def seeds_in_words(missing: Iterable[tuple[str, Trial]], rows: Sequence[ComparedRow]) -> str:
    """Return (row, result) pairs as 'FedAvg (seeds 0, 1), FedBM'. A row without a finished run has no seeds."""
    seeds: dict[str, list[str]] = {}
    for name, result in missing:
        seeds.setdefault(name, []).append(str(result.seed))
    whole = {row.name for row in rows if len(seeds.get(row.name, ())) == len(row.missing) and not row.runs}
    if len(whole) == len(rows) > 1:
        return "all rows"
    return ", ".join(
        name if name in whole else f"{name} (seed{'s' * (len(some) > 1)} {', '.join(some)})"
        for name, some in seeds.items()
    )


def missing_words(rows: Sequence[ComparedRow]) -> tuple[str, ...]:
    """Return why seeds are missing, each reason once: 'not run: FedAvg (seeds 0, 1), FedBM'."""
    reasons: dict[str, list[tuple[str, Trial]]] = {}
    for row in rows:
        for result in row.missing:
            state = result.state if result.last is None else f"{result.state}, but counted at the planned endpoint"
            why = f"{state}: {result.why}" if result.why else state
            reasons.setdefault(why, []).append((row.name, result))
    return tuple(f"{why}: {seeds_in_words(missing, rows)}" for why, missing in reasons.items())


def setting_words(outcome: Outcome, at: Mapping[str, Any]) -> list[str]:
    """Return ['β = 0.05', 'clients 5']."""
    beta = at.get("beta", outcome.shared.get("beta"))
    return [
        *([f"β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{beta:g}"] if beta is not None else []),
        *(f"{axis} {value}" for axis, value in at.items() if axis not in ("data", "beta")),
    ]


def data_title(data: str) -> str:
    """Return 'HAM10000' for ham10000; the name itself for the user's own data set."""
    return re.split(r":| \(", CATALOG[data].title)[0] if data in CATALOG else data
