"""fedbm demo: FedAvg and FedBM on strongly skewed digits, side by side, then a table and a report."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from fedbm.cli.arguments import given_keys
from fedbm.cli.live import Bar, Lines, Show, live_bars
from fedbm.cli.tables import partition_table, partition_words, result_table
from fedbm.config import Config, make_config, nest
from fedbm.engine.device import find_device
from fedbm.errors import FedBMError
from fedbm.plan import make_plan
from fedbm.results.report import write_report
from fedbm.results.runs import read_run
from fedbm.side_by_side import run_all
from fedbm.simulate import run, run_path

METHODS = ("fedavg", "fedbm")
SETTINGS = {"data": "digits", "clients": 10, "beta": 0.05, "rounds": 20}


def demo(found: argparse.Namespace, console: Console) -> None:
    configs = make_configs(found)
    plans = [make_plan(config) for config in configs]
    first = plans[0]
    console.print(
        "Ten hospitals hold 1,797 real handwritten digits, very unevenly (Dirichlet β = 0.05). "
        "Each trains on its own; a server averages, twice: plainly (FedAvg), and with FedBM.\n"
    )
    counts = first.partition.counts(first.dataset.labels, len(first.dataset.classes))
    console.print(partition_table(counts, first.dataset.classes))
    for sentence in partition_words(first.partition, counts):
        console.print(sentence + "\n")
    folders = [run_path(plan) for plan in plans]
    left = [config for config, folder in zip(configs, folders, strict=True) if not (folder / "summary.json").exists()]
    titles = [f"{config.method.name}, seed {config.train.seed}" for config in left]
    play(left, titles, console)
    console.print()
    console.print(result_table([read_run(folder) for folder in folders]))
    page = write_report(folders, Path(configs[0].engine.out), "FedAvg and FedBM on skewed digits")
    console.print(
        f"\nreport: {page.resolve()} (open it in a browser; it needs no network)",
        soft_wrap=True,
    )
    console.print("next: fedbm run --help, or bring a folder of your own: fedbm data FOLDER")


def make_configs(found: argparse.Namespace) -> list[Config]:
    if not re.fullmatch("[1-9][0-9]?", found.seeds):
        raise FedBMError(f'seeds must be a whole number from 1 to 99, not "{found.seeds}"')
    given = given_keys(found)
    return [
        make_config(nest({**SETTINGS, "method": method, "seed": seed, **given}))
        for seed in range(int(found.seeds))
        for method in METHODS
    ]


def play(configs: list[Config], titles: list[str], console: Console) -> None:
    """All runs, with progress: in processes on the CPU, one after the other on a GPU."""
    if not configs:
        return
    with ExitStack() as stack:
        if console.is_terminal:
            bars = stack.enter_context(live_bars(console))
            shows: list[Show] = [Bar(bars, t, c.train.rounds) for t, c in zip(titles, configs, strict=True)]
        else:
            shows = [Lines(console, t, c.train.rounds) for t, c in zip(titles, configs, strict=True)]
        if find_device(configs[0].engine.device).type == "cpu":
            for number, event in run_all(configs, processes=os.cpu_count() or 1):
                shows[number](event)
        else:
            for number, config in enumerate(configs):
                for event in run(make_plan(config)):
                    shows[number](event)
