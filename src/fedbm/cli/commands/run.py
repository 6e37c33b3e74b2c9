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
from typing import TYPE_CHECKING

from rich.console import Console

from fedbm.cli.flags import add_all_settings, check_applies, read_config
from fedbm.cli.parser import Parser

if TYPE_CHECKING:
    from fedbm.engine.round_loop import Event
    from fedbm.runs.run_config import Config

MAX_CLIENTS_SHOWN = 50
LONG_SECONDS = 300  # a run on a CPU that takes longer gets a note on how to make it shorter
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
    check_applies(args.settings, [config], planned=False)
    check_engine(config)
    with show_decoding(console) as progress:
        plan = make_plan(config, progress=progress)
    check_applies(args.settings, [plan.config])
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
                if note := note_on_time(event, plan.config):
                    console.print(note)
    finished = read_run(path)
    console.print(result_table([finished]))
    for advice in advise(finished)[:MAX_ADVICE]:
        console.print(f"advice: {advice.sentence}")


def note_on_time(event: Event, config: Config) -> str:
    """Return how long a long run on a CPU will take, and how to shorten it, after round 2; otherwise ""."""
    from fedbm.engine.device import find_device
    from fedbm.utils.text import format_seconds

    # round 1 is slower: processes start and memory is allocated
    if event.record is None or event.round != 2 or event.last:
        return ""
    seconds = event.record.seconds["total"] * config.train.rounds
    if seconds < LONG_SECONDS or find_device(config.engine.device).type != "cpu":
        return ""
    return (
        f"note: {config.train.rounds} rounds take about {format_seconds(seconds)} on this machine. For a first look, "
        "stop with Ctrl-C, and use a smaller --size or --width, or fewer --rounds."
    )
