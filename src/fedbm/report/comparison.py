"""Rows of one table with their tests: n, mean ± std, the paper's number, and the difference to the leading row.

The leading row is the one that the experiment names, else FedBM, else the first: it is never chosen by its score. It is
tested against every other row except central training: paired t-test over seeds, macro-F1. Holm's correction covers the
tests that have data, in all cells: tests that finish later can raise a corrected p. An experiment that states contrasts
has these instead (`experiments/contrasts.py`), and runs that are withheld are missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbm.data.catalog.lookup import CATALOG
from fedbm.experiments.contrasts import HEADLINE_METRIC as HEADLINE_METRIC
from fedbm.experiments.contrasts import Contrast, contrasts_in, visible
from fedbm.experiments.outcomes import Outcome, Result
from fedbm.experiments.paper_numbers import Published, deviations, published
from fedbm.experiments.spec import cells
from fedbm.methods import METHODS, FedBM, is_central
from fedbm.report.grouping import Group, MethodRuns
from fedbm.utils.statistics import Paired, Spread, holm, paired

MOMENTS = ("best", "last", "last_quarter", "averaged", "averaged_last_quarter")  # of RunView.scores()
STANDS_FOR = {"chars74k": "femnist"}  # data set → the paper's data set it replaces; no difference is computed
STATES = {"absent": "data or model not here"}  # states whose name needs more words
CENTRAL = tuple(method.title for method in METHODS.values() if method.central)


@dataclass(frozen=True)
class Test:
    """Leading row − this row."""

    paired: Paired
    corrected: float | None = None  # p after Holm's correction


@dataclass(frozen=True)
class ComparedRow:
    """One row of a comparison: its finished seeds in *runs*, the others with their reasons in *missing*."""

    name: str
    runs: MethodRuns | None  # None: no seed is finished
    missing: tuple[Result, ...] = ()
    published: Published | None = None
    comparable: bool = True  # whether a difference to the paper has a meaning
    deviations: tuple[tuple[str, str], ...] = ()
    rival: bool = False  # whether the leading row is tested against it
    tests: Mapping[str, Test] = field(default_factory=dict)  # moment → test

    @property
    def n(self) -> int:
        return len(self.runs.runs) if self.runs else 0

    @property
    def planned(self) -> int:
        return self.n + len(self.missing)

    def score(self, moment: str, metric: str) -> Spread | None:
        return self.runs.score(moment, metric) if self.runs else None

    def by_seed(self, moment: str = "best") -> dict[int, float]:
        return self.runs.by_seed(moment, HEADLINE_METRIC) if self.runs else {}

    def minus_paper(self, metric: str) -> float | None:
        """Return ours − the paper's, or None unless both exist and mean the same."""
        score = self.score("best", metric)
        if score is None or self.published is None or not self.comparable:
            return None
        return score.mean - self.published.mean[metric]

    @property
    def state(self) -> str:
        """Why there is no number: 'not run', 'failed', …"""
        return "; ".join(dict.fromkeys(STATES.get(result.state, result.state) for result in self.missing))


@dataclass(frozen=True)
class Comparison:
    """Rows under one setting: one data set, one partition, one value of every axis."""

    title: str
    rows: tuple[ComparedRow, ...]
    lead: str  # the name of the leading row; "" if no run is finished
    group: Group
    data: str = ""  # the name of the data set
    at: Mapping[str, Any] = field(default_factory=dict)
    tests: int = 0  # how many Holm's correction covers, in all comparisons of the experiment
    contrasts: tuple[Contrast, ...] = ()  # those that the experiment states, in place of tests against the lead

    @property
    def leading(self) -> ComparedRow | None:
        return next((row for row in self.rows if row.name == self.lead), None)

    @property
    def empty(self) -> bool:
        """Whether a table would contain no number, neither ours nor the paper's."""
        return not self.lead and not any(row.published for row in self.rows)

    def paper_difference(self, row: ComparedRow) -> float | None:
        """Return leading row − *row* in the paper's macro-F1, if it prints both and they mean the same."""
        lead = self.leading
        if lead is None or lead.published is None or row.published is None or not row.comparable:
            return None
        return lead.published.mean[HEADLINE_METRIC] - row.published.mean[HEADLINE_METRIC]


def compare_runs(group: Group) -> Comparison:
    """Return a group of runs as a comparison."""
    lead = leading_row([row.name for row in group.rows], [row.name for row in group.rows if row.central])
    rows = [ComparedRow(row.name, row, rival=row.name != lead and not row.central) for row in group.rows]
    (made,) = _corrected([Comparison(group.title, _tested(rows, lead), lead, group, _data_of(group))])
    return made


def compare_outcome(outcome: Outcome) -> list[Comparison]:
    """Return a comparison for every cell of an experiment. Withheld runs are missing."""
    outcome = visible(outcome)
    central = {*CENTRAL, *(r.row for r in outcome.results if r.run is not None and is_central(r.run.method))}
    lead = leading_row(outcome.rows, central, outcome.lead)
    every = cells(outcome.axes)
    found = _corrected([_cell(outcome, at, lead, central) for at in every])
    return [replace(c, contrasts=stated) for c, stated in zip(found, contrasts_in(outcome, every), strict=True)]


def missing_words(rows: Sequence[ComparedRow]) -> tuple[str, ...]:
    """Return why seeds are missing, each reason once: 'not run: FedAvg (seeds 0, 1), FedBM (seed 2)'."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for result in row.missing:
            why = f"{result.state}: {result.why}" if result.why else result.state
            reasons.setdefault(why, {}).setdefault(row.name, []).append(str(result.seed))
    return tuple(
        f"{why}: " + ", ".join(f"{name} (seed{'s' * (len(s) > 1)} {', '.join(s)})" for name, s in names.items())
        for why, names in reasons.items()
    )


def leading_row(names: Sequence[str], central: Collection[str], named: str = "") -> str:
    """Return the row that is named, or FedBM or its first variant, or the first; central training only if alone."""
    if named or not names:
        return named
    rivals = [name for name in names if name not in central] or list(names)
    title = FedBM.title
    return next((n for n in rivals if n == title), next((n for n in rivals if n.startswith(f"{title} · ")), rivals[0]))


def _cell(outcome: Outcome, at: Mapping[str, Any], lead: str, central: Collection[str]) -> Comparison:
    data, beta = _setting(outcome, at, "data", "digits"), _setting(outcome, at, "beta")
    data = Path(str(data)).stem
    rows = []
    for name in outcome.rows:
        results = outcome.cell(name, at)
        runs = tuple(replace(result.run, label=name) for result in results if result.run is not None)
        rows.append(
            ComparedRow(
                name=name,
                runs=MethodRuns(name, runs[0].method, runs) if runs else None,
                missing=tuple(result for result in results if result.run is None),
                published=published(outcome.paper, STANDS_FOR.get(data, data), beta, name) if outcome.paper else None,
                comparable=data not in STANDS_FOR,
                deviations=tuple(deviations(outcome.name, name, data)) if runs else (),
                rival=outcome.analysis is None and name not in (lead, *central),
            )
        )
    title = ", ".join([data_title(data), *setting_words(outcome, at)])
    finished = tuple(row.runs for row in rows if row.runs is not None)
    return Comparison(
        title, _tested(rows, lead), lead if finished else "", Group(title, finished, (), missing_words(rows)), data, at
    )


def _tested(rows: Sequence[ComparedRow], lead: str) -> tuple[ComparedRow, ...]:
    leading = next((row for row in rows if row.name == lead), None)
    if leading is None or leading.runs is None:
        return tuple(rows)

    def tests(row: ComparedRow) -> dict[str, Test]:
        found = {moment: paired(leading.by_seed(moment), row.by_seed(moment)) for moment in MOMENTS}
        return {moment: Test(difference) for moment, difference in found.items() if difference is not None}

    return tuple(replace(row, tests=tests(row)) if row.rival and row.runs else row for row in rows)


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Apply Holm's correction at every moment, over all tests of all comparisons that have data."""
    rows = [row for comparison in comparisons for row in comparison.rows]
    corrected: list[dict[str, Test]] = [{} for _ in rows]
    for moment in MOMENTS:
        known = [row.tests[moment].paired.p if moment in row.tests else None for row in rows]
        for row, made, after in zip(rows, corrected, holm(known), strict=True):
            if moment in row.tests:
                made[moment] = replace(row.tests[moment], corrected=after)
    every = iter(corrected)
    tests = sum("best" in row.tests and row.tests["best"].paired.p is not None for row in rows)
    return [replace(c, rows=tuple(replace(row, tests=next(every)) for row in c.rows), tests=tests) for c in comparisons]


def _setting(outcome: Outcome, at: Mapping[str, Any], key: str, default: Any = None) -> Any:
    return at.get(key, outcome.shared.get(key, default))


def setting_words(outcome: Outcome, at: Mapping[str, Any]) -> list[str]:
    """Return ['β = 0.05', 'clients 5']."""
    beta = _setting(outcome, at, "beta")
    return [
        *([f"β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{beta:g}"] if beta is not None else []),
        *(f"{axis} {value}" for axis, value in at.items() if axis not in ("data", "beta")),
    ]


def data_title(data: str) -> str:
    """Return 'HAM10000' for ham10000; the name itself for a data set of the user's own."""
    return re.split(r":| \(", CATALOG[data].title)[0] if data in CATALOG else data


def same_but(at: Mapping[str, Any], *axes: str) -> str:
    """Return a key that is equal for cells that differ on these axes only."""
    return json.dumps({key: value for key, value in at.items() if key not in axes}, sort_keys=True)


def _data_of(group: Group) -> str:
    return group.runs[0].data if group.runs else ""
