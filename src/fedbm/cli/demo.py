"""fedbm demo: FedAvg and FedBM on strongly skewed digits, side by side, then a table and a report."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedbm.cli.compare import config_of, play_all
from fedbm.cli.flags import given_keys
from fedbm.cli.tables import partition_table, partition_words, result_table
from fedbm.errors import FedBMError
from fedbm.experiments.seed_list import parse_seeds
from fedbm.report.write import write_report
from fedbm.runs.plan import make_plan
from fedbm.runs.reader import read_run

METHODS = ("fedavg", "fedbm")
SETTINGS = {"data": "digits", "clients": 10, "beta": 0.05, "rounds": 20}


def demo(found: argparse.Namespace, console: Console) -> None:
    given = {**SETTINGS, **given_keys(found)}
    seeds = parse_seeds(found.seeds)
    configs = [config_of({}, given, method, None, seed) for seed in seeds for method in METHODS]
    first = make_plan(configs[0])
    console.print(
        "Ten hospitals hold 1,797 real handwritten digits, very unevenly (Dirichlet β = 0.05). "
        "Each trains on its own; a server averages, twice: plainly (FedAvg), and with FedBM.\n"
    )
    counts = first.partition.counts(first.dataset.labels, len(first.dataset.classes))
    console.print(partition_table(counts, first.dataset.classes))
    for sentence in partition_words(first.partition, counts):
        console.print(sentence + "\n")
    folders, failures = play_all(configs, console)
    if failures:
        raise FedBMError(failures[0])
    console.print()
    console.print(result_table([read_run(folder) for folder in folders]))
    page = write_report(folders, Path(configs[0].engine.out), "FedAvg and FedBM on skewed digits")
    console.print(f"\nreport: {page.resolve()} (open it in a browser; it needs no network)", soft_wrap=True)
    console.print("next: fedbm run --help, or bring a folder of your own: fedbm data FOLDER")
