"""An outcome → its columns: for every row n, mean ± std, the paper's number, and the difference to the leading row.

The leading row is the one its file names, else FedBM where it takes part, else the first: never chosen by its score.
It is tested against every other row but central training (paired t-test over seeds, macro-F1 at the round
chosen on validation). Holm's correction is over the tests that have data, in all cells: tests that finish later can
raise a corrected p. An experiment that states contrasts has these instead: contrasts.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbm.data.catalog.lookup import CATALOG
from fedbm.experiments.contrasts import Contrast, contrasts_in, visible
from fedbm.experiments.outcomes import Outcome, Result
from fedbm.experiments.paper_numbers import Deviation, Published, deviations, published
from fedbm.experiments.spec import cells
from fedbm.report.grouping import NAMES, Group, Row
from fedbm.report.statistics import Paired, holm, paired
from fedbm.report.text import HEADLINE_METRIC
from fedbm.runs.reader import RunView

STANDS_FOR = {"chars74k": "femnist"}  # whose numbers are shown beside, without a difference
SHORT = {"absent": "data or model not here"}  # states in fewer words; the others are short


@dataclass(frozen=True)
class Line:
    """One row in one column. *runs* are its finished seeds, *missing* the others, each with its reason."""

    name: str
    row: Row | None  # None: not one seed is finished
    missing: tuple[Result, ...]
    published: Published | None
    comparable: bool  # whether a difference to the paper means anything
    unlike: tuple[Deviation, ...]
    rival: bool = False  # whether the leading row is tested against it
    against: Paired | None = None  # leading row − this row
    corrected: float | None = None  # its p after Holm
    last_quarter: Paired | None = None  # leading row − this row over the last quarter of the rounds

    @property
    def seeds(self) -> int:
        """Finished or not."""
        return len(self.missing) + (len(self.row.runs) if self.row else 0)

    def minus_paper(self, metric: str) -> float | None:
        """Ours − the paper's; only where both are and mean the same."""
        score = self.row.score("best", metric) if self.row else None
        if score is None or self.published is None or not self.comparable:
            return None
        return score.mean - self.published.mean[metric] / 100

    @property
    def why(self) -> str:
        """For a cell without a number: 'not run', 'failed', …"""
        return "; ".join(dict.fromkeys(SHORT.get(result.state, result.state) for result in self.missing))


@dataclass(frozen=True)
class Column:
    """One cell of the axes: a data set, a β, a number of clients."""

    title: str
    at: Mapping[str, Any]
    lines: tuple[Line, ...]
    lead: str  # the name of the leading row; "" where nothing is finished
    lists_unlike: bool  # whether its rows name what is not like the paper: not those of a grid of one's own
    tests: int = 0  # how many Holm's correction is over, in all columns together
    contrasts: tuple[Contrast, ...] = ()  # those that the experiment states, in place of tests against the lead

    @property
    def empty(self) -> bool:
        """Whether a table of it would hold no number, neither ours nor the paper's."""
        return not self.lead and not any(line.published for line in self.lines)

    def printed_against(self, line: Line) -> float | None:
        """Leading row − *line* in the paper's macro-F1; only where it prints both, and they mean the same."""
        lead = next((one.published for one in self.lines if one.name == self.lead), None)
        if lead is None or line.published is None or not line.comparable:
            return None
        return (lead.mean[HEADLINE_METRIC] - line.published.mean[HEADLINE_METRIC]) / 100

    @property
    def group(self) -> Group:
        """With the rows' own names."""
        rows = tuple(line.row for line in self.lines if line.row is not None)
        return Group(self.title, rows, (), self.missing)

    @property
    def missing(self) -> tuple[str, ...]:
        """Why cells are empty or have fewer seeds, each reason once: 'not run: FedAvg (seeds 0, 1, 2), …'."""
        reasons: dict[str, dict[str, list[str]]] = {}
        for line in self.lines:
            for result in line.missing:
                why = f"{result.state}: {result.why}" if result.why else result.state
                reasons.setdefault(why, {}).setdefault(line.name, []).append(str(result.seed))
        return tuple(
            f"{why}: " + ", ".join(f"{row} (seed{'s' * (len(s) > 1)} {', '.join(s)})" for row, s in whom.items())
            for why, whom in reasons.items()
        )


def columns(outcome: Outcome, moment: str = "best") -> list[Column]:
    """*moment*: that at which rows are tested, one of those of RunView.scores(). Withheld runs are left out."""
    outcome = visible(outcome)
    ceilings = _ceilings(outcome)
    lead = leading_row(outcome)
    there = cells(outcome.axes)
    found = [_column(outcome, at, lead, ceilings, moment) for at in there]
    known = [line.against.p if line.against else None for column in found for line in column.lines]
    corrected, tests = iter(holm(known)), sum(p is not None for p in known)
    return [
        replace(
            column,
            lines=tuple(replace(line, corrected=next(corrected)) for line in column.lines),
            tests=tests,
            contrasts=contrasts,
        )
        for column, contrasts in zip(found, contrasts_in(outcome, there), strict=True)
    ]


def leading_row(outcome: Outcome) -> str:
    """The row its file names, or FedBM, or the first; central training, a ceiling, only if named or alone."""
    if outcome.lead:
        return outcome.lead
    rows = [name for name in outcome.rows if name not in _ceilings(outcome)] or list(outcome.rows)
    return NAMES["fedbm"] if NAMES["fedbm"] in rows else rows[0]


def _ceilings(outcome: Outcome) -> set[str]:
    """The rows of central training. A run that is not there has no method, so the name counts as well."""
    return {NAMES["central"]} | {r.row for r in outcome.results if r.run is not None and r.run.method == "central"}


def _column(outcome: Outcome, at: Mapping[str, Any], lead: str, ceilings: set[str], moment: str) -> Column:
    rivals = set(outcome.rows) - {lead, *ceilings} if outcome.analysis is None else set()
    lines = [replace(_line(outcome, name, at), rival=name in rivals) for name in outcome.rows]
    scores, late = (
        {line.name: line.row.by_seed(when, HEADLINE_METRIC) for line in lines if line.row is not None}
        for when in (moment, "last_quarter")
    )
    tested = [
        replace(line, against=paired(scores[lead], scores[line.name]), last_quarter=paired(late[lead], late[line.name]))
        if line.rival and lead in scores and line.name in scores
        else line
        for line in lines
    ]
    return Column(_title(outcome, at), at, tuple(tested), lead if scores else "", _lists_unlike(outcome))


def _line(outcome: Outcome, name: str, at: Mapping[str, Any]) -> Line:
    results = outcome.cell(name, at)
    runs = tuple(replace(result.run, label=name) for result in results if result.run is not None)
    data, beta = data_of(outcome, at), setting(outcome, at, "beta")
    number = published(outcome.paper, STANDS_FOR.get(data, data), beta, name) if outcome.paper else None
    return Line(
        name=name,
        row=Row(name, runs[0].method, runs) if runs else None,
        missing=tuple(result for result in results if result.run is None),
        published=number,
        comparable=data not in STANDS_FOR,
        unlike=_unlike(runs) if _lists_unlike(outcome) else (),
    )


def _lists_unlike(outcome: Outcome) -> bool:
    """Whether rows are compared with the paper: not those of a grid of one's own, nor of an analysis of its own."""
    return bool(outcome.shows) and outcome.analysis is None


def _unlike(runs: tuple[RunView, ...]) -> tuple[Deviation, ...]:
    return tuple(dict.fromkeys(one for run in runs for one in deviations(run)))


def setting(outcome: Outcome, at: Mapping[str, Any], key: str) -> Any:
    return at.get(key, outcome.shared.get(key))


def data_of(outcome: Outcome, at: Mapping[str, Any]) -> str:
    return Path(str(setting(outcome, at, "data") or "digits")).stem


def _title(outcome: Outcome, at: Mapping[str, Any]) -> str:
    """'HAM10000, β = 0.05'."""
    data = data_of(outcome, at)
    name = re.split(r":| \(", CATALOG[data].title)[0] if data in CATALOG else data
    beta = setting(outcome, at, "beta")
    parts = [name, *([f"β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{beta:g}"] if beta is not None else [])]
    parts += [f"{axis} {value}" for axis, value in at.items() if axis not in ("data", "beta")]
    return ", ".join(parts)


def same_but(at: Mapping[str, Any], *axes: str) -> str:
    """What is equal for cells that differ on these axes alone."""
    return json.dumps({key: value for key, value in at.items() if key not in axes}, sort_keys=True)
