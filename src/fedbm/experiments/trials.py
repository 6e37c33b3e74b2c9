"""Expand an experiment into trials, one per cell and seed, and find the state of each trial's run."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words, prefix_errors
from fedbm.experiments.spec import Experiment, cells
from fedbm.runs.failure import failure_of
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import Config, make_config, settings_for, to_sections
from fedbm.runs.run_record import read_record
from fedbm.runs.run_view import RunView, check_unedited, read_run
from fedbm.runs.runner import run_path

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
    facts: Mapping[str, Any]  # its settings, by the names of the flags, and its row
    config: Config  # after locate(): complete, with what the data set recommends
    folder: Path | None = None  # None: not located, or its data or model are not here
    record: Path | None = None  # of a run that is on record, finished here or elsewhere

    @property
    def words(self) -> str:
        cell = ", ".join(f"{axis} {value}" for axis, value in self.at.items())
        return ", ".join(filter(None, [self.row, cell, f"seed {self.seed}"]))


def trials(experiment: Experiment, seeds: Sequence[int], engine: Mapping[str, Any]) -> list[PlannedTrial]:
    """Return every run in the order of computation: cell by cell as in the file, or seed by seed if the file sets that.

    *engine* has settings of `[engine]`.
    """
    made = []
    for at, (row, own) in itertools.product(cells(experiment.axes), experiment.rows.items()):
        settings = {**settings_for(own["method"], {**experiment.shared, **at}), **own}
        facts = {**settings, **at, "row": row}
        for seed in seeds:
            with prefix_errors(f'{experiment.file}: row "{row}"'):
                config = make_config(to_sections({**settings, **engine, "seed": seed}))
            made.append(PlannedTrial(row, at, seed, experiment=experiment.name, facts=facts, config=config))
    return sorted(made, key=lambda trial: trial.seed) if experiment.by_seed else made


def choose_trials(only: Sequence[str], planned: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """Return the trials that meet every condition: "beta=0.1", "row=FedAvg,FedBM", or names of rows alone.

    Raise FedBMError if no trial has the setting or a value of a condition.
    """
    chosen = list(planned)
    for text in only:
        key, _, words = text.partition("=") if re.match(r"\w+=", text) else ("row", "=", text)
        known = {_normalise(trial.facts[key]): str(trial.facts[key]) for trial in planned if key in trial.facts}
        if not known:
            settings = dict.fromkeys(key for trial in planned for key in trial.facts)
            raise FedBMError(f'only: no run has the setting "{key}"{did_you_mean(key, settings)}')
        names = "|".join(map(re.escape, sorted(known.values(), key=len, reverse=True)))  # a name may contain commas
        values = re.findall(rf"\s*({names}|[^,]*)\s*(?:,|$)", words, re.IGNORECASE)
        for value in filter(None, values):
            if _normalise(value) not in known:
                near = did_you_mean(value, known.values())
                raise FedBMError(f'only: no run has {key} = "{value}"{near}; choose {join_words(known.values())}')
        wanted = set(map(_normalise, values))
        chosen = [trial for trial in chosen if _normalise(trial.facts.get(key)) in wanted]
    return chosen


def _normalise(value: Any) -> str:
    """Return the same text for the same number, and for the same word in any case."""
    try:
        return str(float(str(value)))
    except ValueError:
        return str(value).strip().casefold()


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


def finished_run(trial: PlannedTrial) -> RunView | None:
    """Return the run, or None if it is not finished.

    Raise FedBMError if its config.toml was edited or its record is damaged.
    """
    if trial.record is not None:
        try:
            return read_record(trial.record)
        except FedBMError as error:
            raise FedBMError(f"{error}; remove the record to compute the run again") from error
    return check_unedited(read_run(trial.folder)) if trial.folder and trial.state == "finished" else None
