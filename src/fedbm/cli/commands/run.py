"""fedbm run: train one model, or continue an interrupted run.

examples:
  fedbm run --data digits --method fedbm --clients 10 --beta 0.05 --rounds 50 --seed 0
  fedbm run --data ~/scans --size 64 --method fedavg          any folder of class/*.jpg
  fedbm run experiment.toml --seed 1                          flags override the file
  fedbm run --method moon.py:Moon                             a method of your own: file and class
Run the same command again to continue an interrupted run, or to show a finished one.
"""

from __future__ import annotations

import argparse

from rich.console import Console

from fedbm.cli.flags import add_all_settings, read_config
from fedbm.cli.parser import Parser

MAX_CLIENTS_SHOWN = 50
MAX_ADVICE = 2  # a report has the rest


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file; 'fedbm config --toml' prints one with all keys")
    add_all_settings(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import describe_partition, result_table
    from fedbm.engine.run_folder import RunFolder
    from fedbm.report.advice import advise
    from fedbm.runs.plan import make_plan
    from fedbm.runs.progress_display import print_notes, show_decoding, show_run
    from fedbm.runs.run_view import check_resumable, read_run
    from fedbm.runs.runner import check_engine, run, run_path

    config = read_config(args)
    check_engine(config)
    with show_decoding(console) as progress:
        plan = make_plan(config, progress=progress)
    path = run_path(plan)
    check_resumable(path)
    print_notes(console, plan.notes)
    for part in describe_partition(plan.partition, plan.dataset, MAX_CLIENTS_SHOWN):
        console.print(part)
    console.print(f"run: {path}")
    if RunFolder(path).done:
        console.print("this run is finished; nothing to compute")
    else:
        with show_run(console, plan.config.method.name, plan.config.train.rounds) as show:
            for event in run(plan):
                show(event)
    finished = read_run(path)
    console.print(result_table([finished]))
    for advice in advise(finished)[:MAX_ADVICE]:
        console.print(f"advice: {advice.sentence}")
