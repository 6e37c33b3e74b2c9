"""fedbm compare: methods × β × seeds under one protocol, side by side; finished runs are not computed again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbm.cli.flags import check_concepts_matter, check_matters, given_keys
from fedbm.cli.live import Bar, Lines, Show, decoding, live_bars
from fedbm.cli.tables import comparison_tables
from fedbm.config.options import BY_BETA
from fedbm.engine.device import find_device
from fedbm.errors import FedBMError, listed
from fedbm.experiments.budget import LastRounds, fitting
from fedbm.experiments.estimate import Rates
from fedbm.experiments.seed_list import parse_seeds
from fedbm.methods import METHODS
from fedbm.report.write import write_report
from fedbm.runs.config import Config, find_method, keys, make_config, nest, read_toml
from fedbm.runs.failure import clear_failure, keep_failure
from fedbm.runs.plan import make_plan
from fedbm.runs.reader import check_resumable
from fedbm.runs.runner import run_path
from fedbm.runs.scheduler import run_all
from fedbm.runs.timing_log import device_name, measured

SPENT = "the budget is spent; the same command goes on from the last checkpoints"
LEFT = "no run that is left would end within the budget; the same command goes on with them"
TOO_SHORT = "the budget is spent before one round was played to its end, and what was begun is lost: give more time"


def compare(found: argparse.Namespace, console: Console) -> None:
    names = list(METHODS) if found.methods == "all" else found.methods.split(",")
    methods = [find_method(name.strip()).name for name in names]
    given = given_keys(found)
    check_owned(given, methods)
    if found.betas and "beta" in given:
        raise FedBMError("--beta and --betas are both given: name every β in --betas")
    betas: list[Any] = found.betas.split(",") if found.betas else [given.pop("beta", None)]
    base = read_toml(Path(found.file)) if found.file else {}
    if "seed" in base.get("train", {}):
        raise FedBMError(f"{found.file} sets a seed: delete that line; 'fedbm compare' takes them by --seeds")
    if "method" in base:
        raise FedBMError(
            f"{found.file} has a [method] section: delete it; 'fedbm compare' takes methods and options as flags"
        )
    configs = [
        config_of(base, given, method, beta, seed)
        for beta in betas
        for seed in parse_seeds(found.seeds)
        for method in methods
    ]
    flags, switch = [*given, *([] if betas == [None] else ["beta"])], "--betas" if found.betas else "--beta"
    for config in configs:
        check_matters(flags, config, switch, recommended=False)
    check_concepts_matter(flags, [config.method for config in configs])
    folders, failures = play_all(configs, console, flags, switch)
    if not folders:
        raise FedBMError(failures[0])
    for table in comparison_tables(folders):
        console.print(table)
    console.print(f"report: {write_report(folders, Path(found.to)).resolve()}", soft_wrap=True)
    if failures:
        raise FedBMError(f"{len(failures)} of {len(configs)} runs failed; the first is {failures[0]}")


def config_of(base: dict[str, dict[str, Any]], given: dict[str, Any], method: str, beta: Any, seed: int) -> Config:
    """The file's settings, then the flags', then this cell's; a method takes only the options it has."""
    owners = {key.flag: key.methods for key in keys() if key.section == "method" and key.name != "name"}
    flags = {flag: value for flag, value in given.items() if method in owners.get(flag, (method,))}
    flags |= {"method": method, "seed": seed, **({} if beta is None else {"beta": beta})}
    values = {section: dict(pairs) for section, pairs in base.items()}
    for section, pairs in nest(flags).items():
        values[section] = {**values.get(section, {}), **pairs}
    return make_config(values)


def check_owned(given: dict[str, Any], methods: Sequence[str]) -> None:
    """An option that none of the compared methods has is a mistake."""
    for key in keys():
        if key.flag in given and key.methods and key.name != "name" and not set(key.methods) & set(methods):
            raise FedBMError(f"{key.switch} is an option of {listed(key.methods)}, none of which is compared")


def play_all(
    configs: Sequence[Config], console: Console, flags: Sequence[str] = (), beta: str = "--beta"
) -> tuple[list[Path], list[str]]:
    """Play every run to its end. The folders of all that were begun, and what failed, a sentence each.

    *flags*: those given, which must matter; *beta*: the switch by which β was given.
    """
    with decoding(console) as progress:
        plans = (make_plan(config, progress=progress) for config in configs)
        runs = {run_path(plan): plan.config for plan in plans}  # twice named, still one
    for config in runs.values():
        check_matters(flags, config, beta)  # once more: the data may recommend another partition
    for folder in runs:
        check_resumable(folder)  # what cannot be reported is said now, not after hours of playing
    done = sum((folder / "summary.json").exists() for folder in runs)
    if done:
        console.print(f"{done} of {len(runs)} runs are finished already")
    failures = play({folder: (title_of(config), config) for folder, config in runs.items()}, console)
    return [folder for folder in runs if (folder / "config.toml").exists()], failures


def play(
    runs: Mapping[Path, tuple[str, Config]], console: Console, budget: float | None = None, whole: Rates | None = None
) -> list[str]:
    """Play what is left of these titled runs, side by side on what is there, for *budget* seconds at most.

    One that fails does not stop the others: its folder says why, and so does what is returned, a sentence each.
    *whole*, seconds a round on record: with them none is begun that would not end within the budget.
    """
    left = [folder for folder in runs if not (folder / "summary.json").exists()]
    if not left:
        return []
    titles, configs = zip(*(runs[folder] for folder in left), strict=True)
    failures: list[str] = []
    with ExitStack() as stack:
        bars = stack.enter_context(live_bars(console)) if console.is_terminal else None
        shows = [show_of(*runs[folder], console, bars) for folder in left]
        device = find_device(configs[0].engine.device)
        spent = stack.enter_context(measured(left[0].parent, device_name(device)))
        may_begin = None
        if whole is not None and budget is not None:
            together = configs[0].engine.runs_per_gpu if device.type == "cuda" else 1
            may_begin = fitting(list(zip(left, configs, strict=True)), together, budget, spent, whole)
        ending = LastRounds(budget, spent)
        played = run_all(configs, fits=may_begin, ending=ending, left=ending.left)
        events = stack.enter_context(closing(played))  # closed, it ends its runs
        for number, news in events:
            folder = left[number]
            if isinstance(news, str):
                keep_failure(folder, news)
                failures.append(f"{titles[number]}: {news}")
                console.print(f"failed: {failures[-1]}", soft_wrap=True)
            else:
                if news.record is not None:
                    clear_failure(folder)
                    ending.latest[number] = news.record["seconds"]["total"]
                    spent.played(folder.name, ending.latest[number])
                    if news.record["round"] == configs[number].train.rounds:
                        spent.save()  # a kill later does not lose what this run took
                shows[number](news)
        if len(failures) < sum(not (folder / "summary.json").exists() for folder in left):
            why = (SPENT if spent.rounds else TOO_SHORT) if ending.over else LEFT
            console.print(why, soft_wrap=True)
    return failures


def title_of(config: Config) -> str:
    beta = f"β {config.data.beta:g}, " if config.data.partition in BY_BETA else ""
    return f"{config.method.name}, {beta}seed {config.train.seed}"


def show_of(title: str, config: Config, console: Console, bars: Any) -> Show:
    rounds = config.train.rounds
    return Lines(console, title, rounds) if bars is None else Bar(bars, title, rounds)
