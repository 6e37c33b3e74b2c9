"""fedbm run: train one model, or continue an interrupted run.

examples:
  fedbm run --data digits --method fedbm --clients 10 --beta 0.05 --rounds 50 --seed 0
  fedbm run --data ~/scans --size 64 --method fedavg          any folder of class/*.jpg
  fedbm run experiment.toml --seed 1                          flags override the file
  fedbm run --method fedper.py:FedPer                         a method of your own: file and class
Run the same command again to continue an interrupted run, or to show a finished one.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from fedbm.cli.flags import add_all_settings, add_setting, read_config
from fedbm.cli.parser import Parser

MAX_CLIENTS_SHOWN = 50
MAX_ADVICE = 2  # a report has the rest


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file; 'fedbm config --toml' prints one with all keys")
    text = "a name of 'fedbm methods', or a class of your own as FILE.py:CLASS (default fedbm)"
    add_setting(parser, "method", metavar="NAME", help=text)
    add_all_settings(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import describe_partition, result_table
    from fedbm.report.advice import advise
    from fedbm.runs.runner import compute_run, run_path

    def show_plan(plan: Any) -> None:
        for part in describe_partition(plan.partition, plan.dataset, MAX_CLIENTS_SHOWN):
            console.print(part)
        console.print(f"run: {run_path(plan)}")

    run = compute_run(read_config(args), console, on_plan=show_plan)
    console.print(result_table([run]))
    for advice in advise(run)[:MAX_ADVICE]:
        console.print(f"advice: {advice.sentence}")
