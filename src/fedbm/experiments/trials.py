"""Expand an experiment into trials, one per cell and seed, and find the state of each trial's run."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words, prefix_errors
from fedbm.experiments.spec import Experiment, cells
from fedbm.runs.failure import failure_of
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import Config, make_config, settings_for, to_sections
from fedbm.runs.run_record import read_checked_record
from fedbm.runs.run_view import RunView, check_unedited, read_run
from fedbm.runs.runner import run_path

# A run must have one of the values of this axis, or one of the rows if it is "row".
Condition = tuple[str, Sequence[str]]
DONE = ("finished", "on record")  # states of a run that need not be computed


@dataclass(frozen=True)
class Trial:
    """One run of one cell, from the plan to the record; *at* is the cell's value on every axis."""

    row: str
    at: Mapping[str, Any]
    seed: int
    state: str = "not run"  # or finished, on record, unfinished, failed, absent, withheld
    why: str = ""  # the reason for a state without a result
    run: RunView | None = None  # in an outcome, if it is finished
    id: str = ""  # of its run, finished or not; "" if it is not known
    last: Mapping[str, float] | None = None  # the scores with which a diverged run counts

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies a run within its experiment."""
        return self.row, json.dumps(self.at, sort_keys=True), self.seed


@dataclass(frozen=True, kw_only=True)
class PlannedTrial(Trial):
    """A trial that can be run. locate() adds the folder, and find_state() the present state of the run."""

    experiment: str
    config: Config  # after locate(): complete, with what the data set recommends
    folder: Path | None = None  # None: not located, or its data or model are not here
    record: Path | None = None  # of a run that is on record, finished here or elsewhere

    @property
    def words(self) -> str:
        cell = ", ".join(f"{axis} {value}" for axis, value in self.at.items())
        return ", ".join(filter(None, [self.row, cell, f"seed {self.seed}"]))


def trials(
    experiment: Experiment, seeds: Sequence[int], engine: Mapping[str, Any], only: Sequence[Condition] = ()
) -> list[PlannedTrial]:
    """Return every run in the order of computation: cell by cell as in the file, or seed by seed if the file sets that.

    *engine* has settings of `[engine]`, and *only* has conditions that a run must meet.
    """
    made = []
    for at, row, settings in _combinations(experiment):
        facts = {**settings, **at, "row": row}
        if all(any(_matches(facts.get(key), value) for value in values) for key, values in only):
            with prefix_errors(f'{experiment.file}: row "{row}"'):
                configs = {seed: make_config(to_sections({**settings, **engine, "seed": seed})) for seed in seeds}
            made += [PlannedTrial(row, at, seed, experiment=experiment.name, config=c) for seed, c in configs.items()]
    return sorted(made, key=lambda trial: trial.seed) if experiment.by_seed else made


def _combinations(experiment: Experiment) -> Iterator[tuple[Mapping[str, Any], str, dict[str, Any]]]:
    """Yield each cell with each row and their settings."""
    for at, (row, own) in itertools.product(cells(experiment.axes), experiment.rows.items()):
        yield at, row, {**settings_for(own["method"], {**experiment.shared, **at}), **own}


def read_conditions(only: Sequence[str], experiments: Sequence[Experiment]) -> list[Condition]:
    """Return the conditions of texts such as "beta=0.1", "method=fedavg", "row=FedAvg,FedBM", or names of rows alone.

    Raise FedBMError if none of the experiments has the axis or a value of a condition.
    """
    axes = dict.fromkeys(["row", "method", *(axis for e in experiments for axis in (*e.axes, *e.shared))])
    rows = list(dict.fromkeys(row for e in experiments for row in e.rows))
    conditions: list[Condition] = []
    for text in only:
        key, _, words = text.partition("=") if re.match(r"\w+=", text) else ("row", "=", text)
        if key not in axes:
            raise FedBMError(f'only: "{key}" is not an axis{did_you_mean(key, axes)}; choose {join_words(axes)}')
        values = _split_names(words, rows) if key == "row" else [v for word in words.split(",") if (v := word.strip())]
        known = [{**settings, **at, "row": row}.get(key) for e in experiments for at, row, settings in _combinations(e)]
        choices = [str(value) for value in dict.fromkeys(known) if value is not None]
        for value in values:
            if not any(_matches(choice, value) for choice in known):
                near = did_you_mean(value, choices)
                raise FedBMError(f'only: no run has {key} = "{value}"{near}; choose {join_words(choices)}')
        conditions.append((key, values))
    return conditions


def _split_names(text: str, names: Sequence[str]) -> list[str]:
    """Split a text at its commas, but not at a comma within one of the names."""
    name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return [item.strip() for item in re.findall(rf"\s*({name}|[^,]*)\s*(?:,|$)", text, re.IGNORECASE) if item.strip()]


def locate(trial: PlannedTrial, progress: Callable[[int, int], None] | None = None) -> PlannedTrial:
    """Find the folder of a trial's run. Loads the data, because the run's id depends on them."""
    try:
        plan = make_plan(trial.config, progress=progress)
    except FedBMError as error:
        return replace(trial, why=str(error), state="absent")
    return replace(trial, folder=run_path(plan), id=plan.id, config=plan.config)


def find_state(located: PlannedTrial, records: Path | None = None) -> PlannedTrial:
    """Return the present state of a run. A run with a record need not be computed, because its id fixes its result."""
    folder = located.folder
    if folder is None:
        return located
    record = records / "runs" / f"{folder.name}.json" if records else None
    if (folder / "summary.json").exists():
        return replace(located, state="finished")
    if record and record.exists():
        return replace(located, state="on record", record=record)
    if failure := failure_of(folder):
        return replace(located, state="failed", why=failure.reason)
    return replace(located, state="unfinished") if (folder / "rounds.jsonl").exists() else located


def finished_run(done: PlannedTrial) -> RunView:
    """Return the run of a finished trial; raise FedBMError if its config.toml was edited or its record is damaged."""
    if done.record is not None:
        try:
            return read_checked_record(done.record)
        except FedBMError as error:
            raise FedBMError(f"{error}; remove the record to compute the run again") from error
    assert done.folder is not None
    return check_unedited(read_run(done.folder))


def _matches(value: Any, text: str) -> bool:
    """Return whether *text* means *value*: the same number, or the same word in any case."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == float(value)
        except ValueError:
            return False
    return str(value).casefold() == text.casefold()
