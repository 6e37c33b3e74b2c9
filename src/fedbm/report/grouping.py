"""Runs → groups that may be compared (one data set, one partition) → one row per label with all its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedbm.errors import FedBMError
from fedbm.methods import METHODS, is_central, title_of
from fedbm.runs.reader import RunView
from fedbm.runs.record_types import PartitionRecord
from fedbm.utils.statistics import Spread, spread_or_none

# What may differ between runs of one row: the seed, and what the group already says.
NOT_A_SETTING = {"train.seed", "data.name", "data.beta"}
AVERAGE = "train.server_average"  # adds scores and changes none; 0 is the same as not set, as in older runs


@dataclass(frozen=True)
class MethodRuns:
    """The finished runs of one row, by seed."""

    name: str
    method: str
    runs: tuple[RunView, ...]

    def score(self, moment: str, metric: str) -> Spread | None:
        """*metric* over seeds at *moment*, one of those of RunView.scores()."""
        scores = [run.scores(moment) for run in self.runs]
        return spread_or_none([None if found is None else found[metric] for found in scores])

    def by_seed(self, moment: str, metric: str) -> dict[int, Any]:
        return {run.seed: found[metric] for run in self.runs if (found := run.scores(moment)) is not None}

    @property
    def central(self) -> bool:
        return is_central(self.method)

    @property
    def global_model(self) -> bool:
        """Whether one model or one vote is scored, not the clients' own models one by one."""
        if self.method not in METHODS:
            return True
        method = METHODS[self.method]()
        return method.common_model or method.ensemble


@dataclass(frozen=True)
class Group:
    title: str
    rows: tuple[MethodRuns, ...]
    unfinished: tuple[RunView, ...]  # their label is the row they would belong to
    missing: tuple[str, ...] = ()  # in words: what was planned and is not here to be read

    @property
    def runs(self) -> tuple[RunView, ...]:
        return tuple(run for row in self.rows for run in row.runs) + self.unfinished

    @property
    def partitions(self) -> dict[int, PartitionRecord]:
        """The clients' partitions by seed. Central training has none: one of its runs may belong to every β."""
        runs = sorted((run for run in self.runs if not is_central(run.method)), key=lambda run: run.seed)
        return {run.seed: run.client_partition for run in runs if run.client_partition is not None}

    @property
    def clients(self) -> bool:
        """Whether any run has clients."""
        return any(not is_central(run.method) for run in self.runs)


def compare(runs: Sequence[RunView]) -> list[Group]:
    """Return groups in the order of their titles, rows in the order of METHODS, central training first.

    Data sets of one name may differ in folder or size: then each has its own group, named with its checksum.

    Raises:
        FedBMError: a run is given twice.
    """
    grouped: dict[tuple[str, str], list[RunView]] = {}
    for run in _like_the_finished(runs):
        grouped.setdefault((_title(run), run.checksum), []).append(run)
    alike = Counter(title for title, _ in grouped)
    return [
        _group(f"{title}, data {checksum[:8]}" if alike[title] > 1 else title, _with_differing_settings(members))
        for (title, checksum), members in sorted(grouped.items())
    ]


def settings(run: RunView, *sections: str) -> dict[str, Any]:
    """flat() of a run's configuration, without the seed and what the group already says."""
    found = {key: value for key, value in flat(run.config, *sections).items() if key not in NOT_A_SETTING}
    if not found.get(AVERAGE):
        found.pop(AVERAGE, None)
    return found


def flat(config: Mapping[str, Any], *sections: str) -> dict[str, Any]:
    """{"train.lr": 0.01, …} of the sections named."""
    return {f"{section}.{key}": value for section in sections for key, value in config.get(section, {}).items()}


def varying(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose value is not the same in all of them; a missing key counts as a value."""
    keys = dict.fromkeys(key for one in all_settings for key in one)
    return [key for key in keys if len({repr(one.get(key)) for one in all_settings}) > 1]


def display(label: str, method: str) -> str:
    """'fedbm · generator=false' → 'FedBM · generator=false'."""
    return title_of(method) + label[len(method) :] if label.startswith(method) else label


def _like_the_finished(runs: Sequence[RunView]) -> list[RunView]:
    """An unfinished run has no summary: a finished one with equal settings lends it data name and label."""
    named = {_asked_for(run): run.data for run in runs if run.finished}
    labels = {repr(settings(run, "method")): run.label for run in runs if run.finished}
    return [
        run
        if run.finished
        else replace(
            run,
            data=named.get(_asked_for(run), run.data),
            label=labels.get(repr(settings(run, "method")), run.label),
        )
        for run in runs
    ]


def _asked_for(run: RunView) -> str:
    return str(run.config.get("data", {}).get("name"))


def _title(run: RunView) -> str:
    beta = "" if run.beta is None else f" β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{run.beta:g}"
    how = {
        "dirichlet": f"Dirichlet{beta}",
        "quantity": f"sizes by Dirichlet{beta}",
        "classes": "a few classes per client",
        "column": "partitioned by a column",
        "iid": "partitioned evenly",
        "file": "partition from a file",
    }.get(run.partition, run.partition + beta)
    return f"{run.data}, {how}, {run.clients} client{'s' * (run.clients != 1)}"


def _with_differing_settings(runs: Sequence[RunView]) -> list[RunView]:
    """Append the settings that differ to the label of runs that differ in more than the seed."""
    sections = ("data", "language", "model", "method", "train", "concepts", "own")
    apart = []
    for label in dict.fromkeys(run.label for run in runs):
        same = [run for run in runs if run.label == label]
        keys = varying([settings(run, *sections) for run in same])
        for run in same:
            own = settings(run, *sections)
            extra = ", ".join(f"{key}={_short(own.get(key))}" for key in keys)
            apart.append(replace(run, label=f"{label} · {extra}" if extra else label))
    return apart


def _group(title: str, runs: Sequence[RunView]) -> Group:
    (label, seed), count = Counter((run.label, run.seed) for run in runs).most_common(1)[0]
    if count > 1:
        first, second = [run.path for run in runs if (run.label, run.seed) == (label, seed)][:2]
        raise FedBMError(f"{first} and {second} are the same run ({label}, seed {seed}, {title}); give one of them")
    # A method comes before its variants: fewer options in the label first.
    order = {name: (not method.central, place) for place, (name, method) in enumerate(METHODS.items())}
    last = (True, len(order))
    ordered = sorted(
        runs, key=lambda run: (order.get(run.method, last), run.method, run.label.count("="), run.label, run.seed)
    )
    finished = [run for run in ordered if run.finished]
    rows = tuple(
        MethodRuns(display(label, method), method, tuple(run for run in finished if run.label == label))
        for label, method in dict.fromkeys((run.label, run.method) for run in finished)
    )
    return Group(title, rows, tuple(run for run in ordered if not run.finished))


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "unset", True: "yes", False: "no"}[value]
    return str(value)
