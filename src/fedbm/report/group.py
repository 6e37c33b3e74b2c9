"""The rows that a report compares: one data set and partition, one row per method or setting with all its seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedbm.experiments.paper_numbers import Published
from fedbm.experiments.spec import ENDPOINTS
from fedbm.experiments.trials import Trial
from fedbm.methods import METHODS, FedAvg, FedBM, is_central
from fedbm.runs.run_file_types import PartitionRecord
from fedbm.runs.run_view import RunView
from fedbm.utils.statistics import MIN_SEEDS, Paired, Spread, spread_or_none

HEADLINE_METRIC = "f1"
LEVEL = 0.05
MOMENTS = ("best", "last", "last_quarter", "averaged", "averaged_last_quarter")  # of RunView.scores()


@dataclass(frozen=True)
class Contrast:
    """A difference in macro-F1 between two rows of a group."""

    first: str
    second: str
    endpoint: str  # of a plan, or one of MOMENTS
    by_seed: Mapping[int, float]  # the difference within each seed that has both rows
    found: Paired | None  # None: no seed has both rows
    chosen: Paired | None = None  # of a plan with another endpoint: the difference at the round chosen on validation
    sign_flip: float | None = None
    corrected: float | None = None  # p after Holm's correction
    tests: int = 0  # number of tests in the correction; 0: only estimated

    @property
    def name(self) -> str:
        return f"{self.first} − {self.second}"

    @property
    def paired(self) -> Paired:
        """The difference, which must have a seed."""
        assert self.found is not None
        return self.found

    @property
    def established(self) -> bool:
        """Whether p after correction is small, from enough seeds."""
        return self.corrected is not None and self.corrected < LEVEL and self.paired.n >= MIN_SEEDS


@dataclass(frozen=True)
class GroupRow:
    """One row: finished runs by seed, missing results, the paper's number, and tests by moment."""

    name: str
    method: str  # "" without a finished run
    runs: tuple[RunView, ...]
    missing: tuple[Trial, ...] = ()
    published: Published | None = None
    deviations: tuple[tuple[str, str], ...] = ()
    rival: bool = False  # whether the leading row is tested against it
    tests: Mapping[str, Contrast] = field(default_factory=dict)  # leading row − this row, by moment

    def score(self, moment: str, metric: str) -> Spread | None:
        """Return *metric* over seeds at *moment*, as named by RunView.scores(); None if a seed has no value."""
        scores = [run.scores(moment) for run in self.runs]
        return spread_or_none([None if found is None else found[metric] for found in scores])

    def by_seed(self, moment: str = "best", metric: str = HEADLINE_METRIC) -> dict[int, Any]:
        """Return *metric* by seed, without the seeds that have no value."""
        scores = {run.seed: run.scores(moment) for run in self.runs}
        return {seed: one[metric] for seed, one in scores.items() if one is not None and one[metric] is not None}

    @property
    def diverged(self) -> dict[int, float]:
        """The macro-F1 with which diverged runs count at the endpoint of a plan, by seed."""
        return {one.seed: one.last[HEADLINE_METRIC] for one in self.missing if one.last is not None}

    def at_endpoint(self, moment: str) -> dict[int, float]:
        """Return macro-F1 by seed, also of diverged runs."""
        return self.by_seed(moment) | self.diverged

    def minus_paper(self, metric: str) -> float | None:
        """Return ours − the paper's; None if one of them is missing."""
        score = self.score("best", metric)
        if score is None or self.published is None:
            return None
        return score.mean - self.published.mean[metric]

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(run.seed for run in self.runs)

    @property
    def central(self) -> bool:
        return is_central(self.method)

    @property
    def global_model(self) -> bool:
        """Whether one model or one vote is scored, not every client's own model."""
        method = METHODS[self.method]() if self.method in METHODS else FedAvg()
        return method.common_model or method.ensemble

    @property
    def state(self) -> str:
        """Why there is no number: 'not run', 'failed', …"""
        words = {"absent": "data or model not here"}
        return "; ".join(dict.fromkeys(words.get(result.state, result.state) for result in self.missing))


@dataclass(frozen=True)
class Group:
    """Rows under one setting: one data set, one partition, one value of every axis."""

    title: str
    rows: tuple[GroupRow, ...]
    unfinished: tuple[RunView, ...] = ()  # labelled like the row they would belong to
    lead: str = ""  # the name of the leading row; "" if no run is finished
    data: str = ""  # the name of the data set
    at: Mapping[str, Any] = field(default_factory=dict)
    contrasts: tuple[Contrast, ...] = ()  # stated by the experiment, in place of tests

    @property
    def finished(self) -> Group:
        """The group without the rows that have no finished run."""
        return replace(self, rows=tuple(row for row in self.rows if row.runs))

    @property
    def runs(self) -> tuple[RunView, ...]:
        return tuple(run for row in self.rows for run in row.runs) + self.unfinished

    @property
    def partitions(self) -> dict[int, PartitionRecord]:
        """The clients' partitions by seed, without those of central training, which has no clients."""
        runs = sorted((run for run in self.runs if not is_central(run.method)), key=lambda run: run.seed)
        return {run.seed: run.client_partition for run in runs if run.client_partition is not None}

    @property
    def clients(self) -> bool:
        """Whether any run has clients."""
        return any(not is_central(run.method) for run in self.runs)

    @property
    def leading(self) -> GroupRow | None:
        return next((row for row in self.rows if row.name == self.lead), None)

    def row(self, name: str) -> GroupRow:
        return next(row for row in self.rows if row.name == name)

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
    def baseline(self) -> GroupRow:
        """FedAvg, or else the first row."""
        return next((row for row in self.rows if row.name == FedAvg.title), self.rows[0])

    def paper_difference(self, row: GroupRow) -> float | None:
        """Return leading row − *row* in the paper's macro-F1; None if it does not print both."""
        lead = self.leading
        if lead is None or lead.published is None or row.published is None:
            return None
        return lead.published.mean[HEADLINE_METRIC] - row.published.mean[HEADLINE_METRIC]


def leading_row(names: Sequence[str], central: Collection[str], named: str = "") -> str:
    """Return the row that the others are compared with, which does not depend on scores.

    This is the named row, else FedBM or its first variant, else the first; central training only if it is alone.
    """
    if named or not names:
        return named
    rivals = [name for name in names if name not in central] or list(names)
    title = FedBM.title
    return next((n for n in rivals if n == title), next((n for n in rivals if n.startswith(f"{title} · ")), rivals[0]))
