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

from fedbm.cli.compare import play
from fedbm.cli.flags import given_keys
from fedbm.cli.live import decoding
from fedbm.cli.tables import table
from fedbm.config.options import BY_BETA
from fedbm.engine.device import find_device
from fedbm.errors import FedBMError
from fedbm.experiments.estimate import Estimate, estimate, rates
from fedbm.experiments.outcomes import Outcome, outcome_of, read_outcome, unread_outcome
from fedbm.experiments.record_store import would_drop, write_outcome
from fedbm.experiments.spec import Experiment, find_experiment, of_the_paper, read_experiment, shipped
from fedbm.experiments.trials import DONE, Place, Standing, check_only, finished_run, locate, standing, trials
from fedbm.report.experiments_report import experiments_report
from fedbm.report.render.terminal import report_tables
from fedbm.runs.config import make_config, nest
from fedbm.runs.reader import check_resumable
from fedbm.runs.record import record_of
from fedbm.runs.scheduler import cores
from fedbm.runs.timing_log import device_name
from fedbm.utils.io import make_folder
from fedbm.utils.text import format_seconds


def reproduce(found: argparse.Namespace, console: Console) -> None:
    if not found.names:
        rows = [(e.name, e.shows, e.title) for e in map(find_experiment, shipped())]
        console.print(table("", ("experiment", "shows", "what"), rows, text_columns=3))
        return
    play_experiments(named(found.names), found, console)


def sweep(found: argparse.Namespace, console: Console) -> None:
    play_experiments([read_experiment(Path(found.file))], found, console)


def records(found: argparse.Namespace, console: Console) -> None:
    """Write what there is of the experiments named, by default of all that have a finished run."""
    options = make_config(nest(engine_of(found))).engine
    out, to, device = Path(options.out).expanduser(), Path(found.to), device_name(find_device(options.device))
    planned = []
    for experiment in named(found.names or shipped()):
        asked = found.seeds if found.names or not experiment.confirmatory else None
        seeds = experiment.chosen_seeds(asked)
        places = [locate(trial) for trial in trials(experiment, seeds, engine_of(found))]
        if found.names or any(standing(place).state == "finished" for place in places):
            planned.append((experiment, places))
    if not planned:
        raise FedBMError(
            f"no experiment of the paper has a finished run in {out}: if there are runs, say by --data where their "
            "data are; records of a grid of your own are written by 'fedbm sweep'"
        )
    for sentence in refusals(planned, to, "--to"):
        raise FedBMError(sentence)
    for experiment, places in planned:
        keep(experiment, places, told(places, out, to, device), to, console)


def named(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names; "all" are those of the paper."""
    return [find_experiment(name) for name in (of_the_paper() if names == ["all"] else dict.fromkeys(names))]


def engine_of(found: argparse.Namespace) -> dict[str, Any]:
    if not found.folder:
        return given_keys(found)
    if not Path(found.folder).expanduser().is_dir():
        raise FedBMError(f"--data is the folder in which data sets are found by name, and there is no {found.folder}")
    return {**given_keys(found), "data_dir": found.folder}


def play_experiments(experiments: Sequence[Experiment], found: argparse.Namespace, console: Console) -> None:
    """Say what there is and what it will take; play; keep records; say what there is now."""
    began, engine = time.monotonic(), engine_of(found)
    seeds = {experiment.name: experiment.chosen_seeds(found.seeds) for experiment in experiments}
    options = make_config(nest(engine)).engine
    out, budget = Path(options.out).expanduser(), seconds_of(found.budget) if found.budget else None
    if found.whole and budget is None:
        raise FedBMError("--whole keeps to runs that end within a budget: give one by --budget, such as 25m")
    check_only(experiments, found.only)
    device = find_device(options.device)
    with decoding(console) as progress:
        planned = [(e, [locate(trial, progress) for trial in trials(e, seeds[e.name], engine)]) for e in experiments]
    wanted = {(t.experiment, t.words) for e in experiments for t in trials(e, seeds[e.name], engine, found.only)}
    chosen = [p for _, places in planned for p in places if (p.trial.experiment, p.trial.words) in wanted]
    if not chosen:
        names = ", ".join(experiment.name for experiment in experiments)
        raise FedBMError(f"no run of {names} fits --only {' --only '.join(found.only)}")
    for data in idle_beta(chosen):
        console.print(f"note: {data} is not dealt by β: its cells along that axis share their runs", soft_wrap=True)
    kept, called = Path(found.records), device_name(device)
    say([standing(place, kept) for place in chosen], told(chosen, out, kept, called), kept, console)
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
    whole = rates(out, kept, called) if found.whole else None
    try:
        failures = play(runs, console, None if budget is None else budget - (time.monotonic() - began), whole)
    except KeyboardInterrupt:
        try:
            for experiment, places in planned:
                keep(experiment, places, told(places, out, kept, called), kept, console, tables=False)
        except FedBMError as error:
            console.print(f"no records were written: {error}", soft_wrap=True)
        raise
    console.print("\nnow:")
    say([standing(place, kept) for place in chosen], told(chosen, out, kept, called), kept, console)
    for experiment, places in planned:
        keep(experiment, places, told(places, out, kept, called), kept, console)
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


def told(places: Sequence[Place], out: Path, records: Path, device: str) -> Estimate:
    """What the runs that are left take on this device."""
    standings = [standing(place, records) for place in places]
    left = [s for s in standings if s.state not in DONE]
    return estimate(left, out, records, device, cores() if device == "cpu" else 1)


def keep(
    experiment: Experiment, places: Sequence[Place], takes: Estimate, to: Path, console: Console, tables: bool = True
) -> None:
    """Write the records of what is finished, and print tables of all that is on record, unless scores are withheld."""
    outcome = outcome_of(experiment, [standing(place, to) for place in places], takes)
    path = write_outcome(outcome, to)
    if tables:
        outcome = read_outcome(path) if outcome.analysis else outcome
        print_tables(outcome, console)
    console.print(f"records: {path}", soft_wrap=True)


def print_tables(outcome: Outcome, console: Console) -> None:
    """Print the experiment's tables, its stated contrasts, and why scores are withheld."""
    report = experiments_report([outcome])
    for found in report_tables(report):
        console.print(found)
    for sentence in report.parts[0].summary if outcome.analysis else ():
        console.print(sentence, soft_wrap=True)
    if outcome.withheld:
        console.print(outcome.withheld, soft_wrap=True)


def say(standings: Sequence[Standing], takes: Estimate, records: Path, console: Console) -> None:
    """How many runs there are in which state, what the rest takes, and what cannot run, with the reason."""
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
    if takes.each:
        console.print(
            f"{len(takes.each)} of them, like runs measured on this device ({takes.device}), take about "
            f"{format_seconds(takes.seconds)}{_rounds_in(takes)}"
        )
    if takes.unknown:
        console.print(
            f"of {takes.unknown} nothing alike was measured on this device ({takes.device}) so far: "
            "a first portion, such as --budget 2m, tells"
        )
    for (state, why), some in _by_reason(once).items():
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        console.print(f"{state}: {some[0].trial.words}{more}: {why}", soft_wrap=True)


def _rounds_in(takes: Estimate) -> str:
    """Where the clock's time is not that of the rounds: side by side they overlap, and alone the start-up comes on top.

    >>> _rounds_in(Estimate({Path("a"): 60.0}, 0, 2.5, "cpu"))
    ' by the clock, for 2 min 30 s of rounds, which overlap in runs side by side'
    >>> _rounds_in(Estimate({Path("a"): 60.0}, 0, 0.9, "cpu"))
    ' by the clock, for 54.0 s of rounds and what lies between them'
    """
    if 0.95 < takes.overlap < 1.05:
        return ""
    why = ", which overlap in runs side by side" if takes.overlap > 1 else " and what lies between them"
    return f" by the clock, for {format_seconds(takes.seconds * takes.overlap)} of rounds{why}"


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
