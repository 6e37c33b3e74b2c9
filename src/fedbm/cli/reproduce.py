"""fedbm reproduce and fedbm sweep: an experiment's runs, as many as the budget allows, and what there is of them."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedbm.cli.arguments import given_keys
from fedbm.cli.compare import cores, count_of, play
from fedbm.cli.live import decoding
from fedbm.cli.tables import table
from fedbm.config import make_config, nest
from fedbm.engine.device import find_device
from fedbm.errors import FedBMError
from fedbm.experiments.estimate import estimate
from fedbm.experiments.files import Experiment, find_experiment, read_experiment, shipped
from fedbm.experiments.trials import Standing, check_only, standing, trials
from fedbm.results.cost import show_seconds
from fedbm.results.portions import device_name


def reproduce(found: argparse.Namespace, console: Console) -> None:
    if not found.names:
        rows = [(e.name, e.shows, e.title) for e in map(find_experiment, shipped())]
        console.print(table("", ("experiment", "shows", "what"), rows, text_columns=3))
        return
    names = shipped() if found.names == ["all"] else list(dict.fromkeys(found.names))
    play_experiments([find_experiment(name) for name in names], found, console)


def sweep(found: argparse.Namespace, console: Console) -> None:
    play_experiments([read_experiment(Path(found.file))], found, console)


def play_experiments(experiments: Sequence[Experiment], found: argparse.Namespace, console: Console) -> None:
    """Say what there is and what it will take; play; say what there is now."""
    engine = given_keys(found)
    if found.folder:
        engine["data_folder"] = found.folder
    options = make_config(nest(engine)).engine
    out, budget = Path(options.out).expanduser(), seconds_of(found.budget) if found.budget else None
    check_only(experiments, found.only)
    planned = [trial for e in experiments for trial in trials(e, count_of(found.seeds), engine, found.only)]
    if not planned:
        raise FedBMError(
            f"no run of {', '.join(e.name for e in experiments)} fits --only {' --only '.join(found.only)}"
        )
    with decoding(console) as progress:
        before = [standing(trial, progress) for trial in planned]
    device = find_device(options.device)
    say(before, out, device_name(device), console)
    if found.plan:
        return
    runs = {s.folder: s.trial.config for s in before if s.folder is not None and s.state != "finished"}
    failures = play(runs, console, budget)
    after = [standing(trial) for trial in planned]
    console.print("\nnow:")
    say(after, out, device_name(device), console)
    if failures:
        raise FedBMError(f"{len(failures)} of {len(runs)} runs failed; the first is {failures[0]}")


def say(standings: Sequence[Standing], out: Path, device: str, console: Console) -> None:
    """How many runs there are in which state, what the rest takes, and what cannot run, with the reason."""
    states = Counter(s.state for s in {s.folder or s.trial.words: s for s in standings}.values())
    order = ("finished", "unfinished", "failed", "not run", "absent")
    console.print(f"{sum(states.values())} runs: " + ", ".join(f"{states[s]} {s}" for s in order if states[s]))
    left = list({s.folder: s for s in standings if s.state in ("unfinished", "failed", "not run")}.values())
    if left:
        told = estimate(left, out, device, cores() if device == "cpu" else 1)
        if told.known:
            console.print(
                f"the {told.known} of them that are like runs measured on this device ({device}) take about "
                f"{show_seconds(told.seconds)}, at {told.overlap:.1f} seconds of rounds in one of the clock"
            )
        if told.unknown:
            console.print(
                f"{told.unknown} runs are like none measured on this device ({device}) so far: "
                "a first portion, such as --budget 2m, tells"
            )
    for (state, why), some in _by_reason(standings).items():
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
