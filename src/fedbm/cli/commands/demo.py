"""fedbm demo: compare FedAvg and FedBM on handwritten digits and write a report.

examples:
  fedbm demo                                                  under two minutes on a laptop; writes runs/report.html
  fedbm demo --rounds 5 --out trial                           shorter, in a folder of its own
"""

from __future__ import annotations

import argparse

from rich.console import Console

from fedbm.cli.commands.compare import SEEDS_HELP, run_configs
from fedbm.cli.flags import add_setting, add_settings, runs_folder

METHODS = ("fedavg", "fedbm")
SETTINGS = {"data": "digits", "clients": 10, "beta": 0.05, "rounds": 20}
INTRODUCTION = """\
The training images of a set of 1,797 handwritten digits are divided among ten simulated hospitals, very unevenly \
(Dirichlet β = 0.05). Each hospital trains on its own images only. A server averages the models, once as FedAvg does \
and once as FedBM does.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_setting(parser, "rounds", metavar="N", help="rounds of each run (default 20)")
    parser.add_argument("--seeds", default="1", help=f"{SEEDS_HELP} (default 1; 3 shows the spread)")
    add_settings(parser, ["out", "cache", "device"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import describe_partition
    from fedbm.runs.method_comparison import make_grid
    from fedbm.runs.plan import make_plan
    from fedbm.runs.seed_list import parse_seeds

    configs = make_grid({}, {**SETTINGS, **args.settings}, METHODS, [None], parse_seeds(args.seeds, "--seeds"))
    first = make_plan(configs[0])
    console.print(INTRODUCTION)
    for part in describe_partition(first.partition, first.dataset):
        console.print(part)
    console.print()
    run_configs(configs, str(runs_folder(args) / "report.html"), console)
    console.print("next: 'fedbm run --help', or look at a folder of your own images: 'fedbm data inspect FOLDER'")
