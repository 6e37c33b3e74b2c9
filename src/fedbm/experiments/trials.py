"""experiment × seeds → trials: each cell of a table with its configuration, and where its run stands."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.experiments.spec import Experiment, cells, in_row
from fedbm.runs.config import Config, make_config, nest, settings_for
from fedbm.runs.failure import failure_of
from fedbm.runs.plan import make_plan
from fedbm.runs.reader import RunView, read_run, unedited
from fedbm.runs.record import record_named
from fedbm.runs.runner import run_path

DONE = ("finished", "on record")  # states of a run that is not to be played


def key_of(row: str, at: Mapping[str, Any], seed: int) -> tuple[str, str, int]:
    """What names a run among those of its experiment."""
    return row, json.dumps(at, sort_keys=True), seed


@dataclass(frozen=True)
class Trial:
    """One run of one cell: *at* names the cell's value on every axis."""

    experiment: str
    row: str
    at: Mapping[str, Any]
    seed: int
    config: Config

    @property
    def key(self) -> tuple[str, str, int]:
        return key_of(self.row, self.at, self.seed)

    @property
    def words(self) -> str:
        cell = ", ".join(f"{axis} {value}" for axis, value in self.at.items())
        return ", ".join(filter(None, [self.row, cell, f"seed {self.seed}"]))


@dataclass(frozen=True)
class Place:
    """Where a trial's run is, or will be; None with the reason where what it needs is not here."""

    trial: Trial
    folder: Path | None
    why: str = ""
    config: Config | None = None  # complete, with what the data set recommends


@dataclass(frozen=True)
class Standing:
    """A trial and its run: finished, on record, unfinished, failed, not run, or absent (what it needs is not here)."""

    trial: Trial
    state: str
    folder: Path | None = None
    why: str = ""
    config: Config | None = None
    record: Path | None = None  # of a run that is on record, finished here or elsewhere


def trials(
    experiment: Experiment, seeds: Sequence[int], engine: Mapping[str, Any], only: Sequence[str] = ()
) -> list[Trial]:
    """Every run in the order in which time is to be spent.

    Cell by cell as the file has them, a cell's seeds together; or seed by seed, where the experiment says so.

    *engine*: flags that say where and how to compute. *only*: "axis=value,value", "method=…", "row=…", or a row's name.
    """
    wanted = [_condition(words) for words in only]
    made = []
    for at, row in itertools.product(cells(experiment.axes), experiment.rows):
        method = row.settings.get("method", experiment.shared.get("method", "fedbm"))
        shared = settings_for(method, {**experiment.shared, **at})
        settings = {**shared, **row.settings}
        facts = {"method": "fedbm", **settings, **at, "row": row.name}
        if all(any(_alike(facts.get(key), value) for value in values) for key, values in wanted):
            with in_row(experiment.file, row.name):
                configs = {seed: make_config(nest({**settings, **engine, "seed": seed})) for seed in seeds}
            made += [Trial(experiment.name, row.name, at, seed, config) for seed, config in configs.items()]
    return sorted(made, key=lambda trial: trial.seed) if experiment.by_seed else made


def check_only(experiments: Sequence[Experiment], only: Sequence[str]) -> None:
    """Each condition must mean something in at least one of the experiments."""
    for key, values in map(_condition, only):
        known = dict.fromkeys(["row", "method", *(axis for e in experiments for axis in (*e.axes, *e.shared))])
        if key not in known:
            raise FedBMError(f'--only: "{key}" is no axis{did_you_mean(key, known)}; say {join_words(known)}')
        names = list(dict.fromkeys(row.name for e in experiments for row in e.rows))
        for value in values:
            if key == "row" and not any(_alike(name, value) for name in names):
                raise FedBMError(
                    f'--only: there is no row "{value}"{did_you_mean(value, names)}; say {join_words(names)}'
                )


def locate(trial: Trial, progress: Callable[[int, int], None] | None = None) -> Place:
    """Its data are loaded for that: a run is named by what it learns from."""
    try:
        plan = make_plan(trial.config, progress=progress)
    except FedBMError as error:
        return Place(trial, None, str(error))
    return Place(trial, run_path(plan), "", plan.config)


def standing(place: Place, records: Path | None = None) -> Standing:
    """Where the run stands now. One that *records* holds a record of is done: its id says that it would end alike."""
    if place.folder is None:
        return Standing(place.trial, "absent", why=place.why)
    failure = failure_of(place.folder)
    record = records / "runs" / f"{place.folder.name}.json" if records else None
    if (place.folder / "summary.json").exists():
        state = "finished"
    elif record and record.exists():
        return Standing(place.trial, "on record", place.folder, config=place.config, record=record)
    elif failure:
        state = "failed"
    else:
        state = "unfinished" if (place.folder / "rounds.jsonl").exists() else "not run"
    return Standing(place.trial, state, place.folder, failure if state == "failed" else "", place.config)


def finished_run(done: Standing) -> RunView:
    """Return the run of a finished trial; raise FedBMError if its config.toml was edited or its record is damaged."""
    if done.record is not None:
        try:
            return record_named(done.record)
        except FedBMError as error:
            raise FedBMError(f"{error}; remove the record to compute the run again") from error
    assert done.folder is not None
    return unedited(read_run(done.folder))


def _condition(words: str) -> tuple[str, list[str]]:
    """ "beta=0.1" or "row=FedAvg,FedBM"; words alone name rows."""
    key, _, values = words.partition("=") if re.match(r"\w+=", words) else ("row", "=", words)
    return key, [value.strip() for value in values.split(",")]


def _alike(value: Any, text: str) -> bool:
    """Whether *text* means *value*: the same number, or the same word whatever its case."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == float(value)
        except ValueError:
            return False
    return str(value).casefold() == text.casefold()
