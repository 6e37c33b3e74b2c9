"""fedbm demo: FedAvg and FedBM on strongly skewed digits in parallel, then a table and a report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.commands.compare import SEEDS_HELP, print_finished
from fedbm.cli.flags import add_settings, given_settings
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from rich.console import Console

HELP = "compare FedAvg and FedBM on handwritten digits and draw a report"
EXAMPLES = None
METHODS = ("fedavg", "fedbm")
SETTINGS = {"data": "digits", "clients": 10, "beta": 0.05, "rounds": 20}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--rounds", default=argparse.SUPPRESS, help="rounds of each run (default 20)")
    parser.add_argument("--seeds", default="1", help=f"{SEEDS_HELP} (default 1; 3 shows the spread)")
    add_settings(parser, ["out", "cache", "device"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.progress import showing_batch
    from fedbm.cli.tables import partition_table, partition_words, result_table
    from fedbm.report.write import write_report
    from fedbm.runs.batch import plan_jobs, run_batch
    from fedbm.runs.compare import make_grid
    from fedbm.runs.plan import make_plan
    from fedbm.runs.reader import read_run
    from fedbm.runs.seed_list import parse_seeds

    configs = make_grid({}, {**SETTINGS, **given_settings(args)}, METHODS, [None], parse_seeds(args.seeds))
    first = make_plan(configs[0])
    console.print(
        "Ten hospitals hold 1,797 real handwritten digits, very unevenly (Dirichlet β = 0.05). Each trains on its own "
        "images. A server averages the models, once as FedAvg does and once as FedBM does.\n"
    )
    counts = first.partition.counts(first.dataset.labels, len(first.dataset.classes))
    console.print(partition_table(counts, first.dataset.classes))
    for sentence in partition_words(first.partition, counts):
        console.print(sentence + "\n")
    jobs = plan_jobs(configs)
    print_finished(jobs, console)
    with showing_batch(console, jobs) as show:
        result = run_batch(jobs, show)
    if result.failures:
        raise FedBMError(result.failures[0])
    folders = [job.folder for job in jobs]
    console.print()
    console.print(result_table([read_run(folder) for folder in folders]))
    page = write_report(folders, Path(configs[0].engine.out), "FedAvg and FedBM on skewed digits")
    console.print(f"\nreport: {page.resolve()} (open it in a browser; it needs no network)", soft_wrap=True)
    console.print("next: fedbm run --help, or try a folder of your own: fedbm data FOLDER")
