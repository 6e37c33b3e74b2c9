"""fedbm reproduce and fedbm sweep: an experiment's runs, as many as the budget allows, and what there is of them."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbm.cli.compare import count_of, play
from fedbm.cli.flags import given_keys
from fedbm.cli.live import decoding
from fedbm.cli.tables import table
from fedbm.config.options import BY_BETA
from fedbm.engine.device import find_device
from fedbm.engine.environment import device_name
from fedbm.errors import FedBMError
from fedbm.experiments.analysis import columns
from fedbm.experiments.estimate import estimate_remaining
from fedbm.experiments.outcomes import outcome_of, unread_outcome
from fedbm.experiments.record_store import would_drop, write_outcome
from fedbm.experiments.spec import Experiment, find_experiment, read_experiment, shipped
from fedbm.experiments.tables import grid, searched
from fedbm.experiments.trials import DONE, Place, Standing, check_only, finished_run, locate, standing, trials
from fedbm.runs.config import make_config, nest
from fedbm.runs.reader import check_resumable
from fedbm.runs.record import record_of
from fedbm.runs.scheduler import cores, places_for
from fedbm.utils.io import make_folder


def reproduce(found: argparse.Namespace, console: Console) -> None:
    if not found.names:
        rows = [(e.name, e.shows, e.title) for e in map(find_experiment, shipped())]
        console.print(table("", ("experiment", "shows", "what"), rows, text_columns=3))
        return
    play_experiments(named(found.names), found, console)


def sweep(found: argparse.Namespace, console: Console) -> None:
    play_experiments([read_experiment(Path(found.file))], found, console)


def named(names: Sequence[str]) -> list[Experiment]:
    return [find_experiment(name) for name in (shipped() if names == ["all"] else dict.fromkeys(names))]


def engine_of(found: argparse.Namespace) -> dict[str, Any]:
    if not found.folder:
        return given_keys(found)
    if not Path(found.folder).expanduser().is_dir():
        raise FedBMError(f"--data is the folder in which data sets are found by name, and there is no {found.folder}")
    return {**given_keys(found), "data_dir": found.folder}


def play_experiments(experiments: Sequence[Experiment], found: argparse.Namespace, console: Console) -> None:
    """Say what there is and what it will take; play; keep records; say what there is now."""
    began, engine, seeds = time.monotonic(), engine_of(found), count_of(found.seeds)
    options = make_config(nest(engine)).engine
    out, budget = Path(options.out).expanduser(), seconds_of(found.budget) if found.budget else None
    check_only(experiments, found.only)
    device = find_device(options.device)
    with decoding(console) as progress:
        planned = [(e, [locate(trial, progress) for trial in trials(e, seeds, engine)]) for e in experiments]
    wanted = {(t.experiment, t.words) for e in experiments for t in trials(e, seeds, engine, found.only)}
    chosen = [p for _, places in planned for p in places if (p.trial.experiment, p.trial.words) in wanted]
    if not chosen:
        names = ", ".join(experiment.name for experiment in experiments)
        raise FedBMError(f"no run of {names} fits --only {' --only '.join(found.only)}")
    for data in idle_beta(chosen):
        console.print(f"note: {data} is not dealt by β: its cells along that axis share their runs", soft_wrap=True)
    kept, parallel = Path(found.records), sum(runs for runs, _ in places_for(make_config(nest(engine)), cores()))

    def tell() -> None:
        now = [standing(place, kept) for place in chosen]
        say(now, kept, console)
        if line := estimate_remaining(now, out, kept, device_name(device), parallel):
            console.print(line)

    tell()
    for sentence in refusals(planned, kept, "--records"):
        if not found.plan:
            raise FedBMError(sentence)
        console.print(f"note: nothing would be played: {sentence}", soft_wrap=True)
    if found.plan:
        return
    for there in (standing(place, kept) for _, places in planned for place in places):
        check_recordable(there)  # what cannot be recorded is said now, not after hours of playing
    make_folder(kept)
    runs = {
        p.folder: (p.trial.words, p.config)
        for p in chosen
        if p.folder is not None and p.config is not None and standing(p, kept).state != "on record"
    }
    try:
        failures = play(runs, console, None if budget is None else budget - (time.monotonic() - began))
    except KeyboardInterrupt:
        try:
            for experiment, places in planned:
                keep(experiment, places, kept, console, tables=False)
        except FedBMError as error:
            console.print(f"no records were written: {error}", soft_wrap=True)
        raise
    console.print("\nnow:")
    tell()
    for experiment, places in planned:
        keep(experiment, places, kept, console)
    if failures:
        raise FedBMError(f"{len(failures)} of {len(runs)} runs failed; the first is {failures[0]}")
    if all(place.folder is None for place in chosen):
        raise FedBMError("not one of these runs can be played here: what they need is absent, as listed above")


def check_recordable(there: Standing) -> None:
    """FedBMError where its record cannot be read, or could not be written when the run is finished."""
    if there.state in DONE:
        run = finished_run(there)
        if there.state == "finished":
            record_of(run)
    elif there.folder is not None:
        check_resumable(there.folder)


def refusals(planned: Sequence[tuple[Experiment, Sequence[Place]]], to: Path, by: str) -> list[str]:
    """A sentence for each experiment whose record in *to* holds finished runs that it has no place for."""
    now = [unread_outcome(experiment, [standing(place, to) for place in places]) for experiment, places in planned]
    return [sentence for outcome in now if (sentence := would_drop(outcome, to, by))]


def idle_beta(places: Sequence[Place]) -> list[str]:
    """The data sets along an axis β that have a partition which β does not shape."""
    found = [p.config.data for p in places if p.config is not None and "beta" in p.trial.at]
    return list(dict.fromkeys(data.name for data in found if data.partition not in BY_BETA))


def keep(experiment: Experiment, places: Sequence[Place], to: Path, console: Console, tables: bool = True) -> None:
    """Write the records of what is finished, after its tables."""
    outcome = outcome_of(experiment, [standing(place, to) for place in places])
    for column in columns(outcome) if tables else ():
        if column.lead:
            heads, *rows = grid(column, without=("unlike",))
            console.print(table(f"{experiment.title}: {column.title}, test scores in %", heads, rows))
    if outcome.search and tables:
        heads = ["row", *outcome.axes, "n", "accuracy + macro-F1", ""]
        console.print(table("Chosen on validation", heads, searched(outcome)))
    console.print(f"records: {write_outcome(outcome, to)}", soft_wrap=True)


def say(standings: Sequence[Standing], records: Path, console: Console) -> None:
    """How many runs there are in which state, and what cannot run, with the reason."""
    once = list({s.folder or repr(s.trial.config): s for s in standings}.values())  # cells may share a run
    states = Counter(s.state for s in once)
    order = (*DONE, "unfinished", "failed", "not run", "absent")
    count = sum(states.values())
    console.print(f"{count} run{'s' * (count != 1)}: " + ", ".join(f"{states[s]} {s}" for s in order if states[s]))
    if states["on record"]:
        console.print(
            f"what is on record in {records} is not computed again, unless --records names another folder",
            soft_wrap=True,
        )
    for (state, why), some in _by_reason(once).items():
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        console.print(f"{state}: {some[0].trial.words}{more}: {why}", soft_wrap=True)


def _by_reason(standings: Sequence[Standing]) -> dict[tuple[str, str], list[Standing]]:
    found: dict[tuple[str, str], list[Standing]] = {}
    for s in standings:
        if s.why:
            found.setdefault((s.state, s.why), []).append(s)
    return found


def seconds_of(text: str) -> float:
    """
    >>> seconds_of("25m"), seconds_of("1h30m"), seconds_of("90s"), seconds_of("45")
    (1500.0, 5400.0, 90.0, 45.0)
    """
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not found or not any(found.groups()):
        raise FedBMError(f'--budget must be a time such as 25m, 90s or 1h30m, not "{text}"')
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(3600 * hours + 60 * minutes + seconds)
