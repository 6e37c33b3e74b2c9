"""fedbm run: train one model, or continue an interrupted run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_all_settings, check_applies, check_language_applies, given_settings, read_config
from fedbm.cli.parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

HELP = "train one model, or continue an interrupted run"
EXAMPLES = """examples:
  fedbm run --data digits --method fedbm --clients 10 --beta 0.05 --rounds 50 --seed 0
  fedbm run --data ~/scans --size 64 --method fedavg          any folder of class/*.jpg
  fedbm run experiment.toml --seed 1                          flags win over the file
The same command again resumes an interrupted run, or shows a finished one.
If two methods have an option of the same name, --METHOD-OPTION names one of them, such as --fedprox-mu.
"""
MAX_CLIENTS_SHOWN = 50


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file; 'fedbm config' prints all its keys")
    add_all_settings(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.progress import decoding, showing
    from fedbm.cli.tables import client_names, partition_table, partition_words, result_table
    from fedbm.engine.run_folder import RunFolder
    from fedbm.runs.plan import make_plan
    from fedbm.runs.reader import check_resumable, read_run
    from fedbm.runs.runner import check_engine, run, run_path

    config, flags = read_config(args), given_settings(args)
    check_applies(flags, config, recommended=False)
    check_language_applies(flags, [config.method])
    check_engine(config)
    with decoding(console) as progress:
        plan = make_plan(config, progress=progress)
    check_applies(flags, plan.config)  # again: the data may recommend another partition
    path = run_path(plan)
    check_resumable(path)
    for note in plan.notes:
        console.print(f"note: {note}")
    counts = plan.partition.counts(plan.dataset.labels, len(plan.dataset.classes))
    if len(counts) <= MAX_CLIENTS_SHOWN:
        console.print(partition_table(counts, plan.dataset.classes, client_names(plan.partition)))
    for sentence in partition_words(plan.partition, counts):
        console.print(sentence)
    console.print(f"run: {path}", soft_wrap=True)
    if RunFolder(path).done:
        console.print("this run is finished; nothing to compute")
    else:
        with showing(console, plan.config.method.name, plan.config.train.rounds) as show:
            for event in run(plan):
                show(event)
    console.print(result_table([read_run(path)]))
