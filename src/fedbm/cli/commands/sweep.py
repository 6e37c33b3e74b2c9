"""fedbm sweep: run a grid of your own, and choose settings on validation data.

examples:
  fedbm sweep grid.toml --seeds 3 --budget 1h
The file has [all] (settings, by the names of the flags), [axes] (lists of values), [[rows]] (name and settings) and
optionally [search] with, for example, choose = ["temperature"] to choose among values on validation data. See
docs/reproducing.md. Run the same command again to continue after the budget ended.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedbm.cli.commands.reproduce import add_experiment_arguments, run_experiments
from fedbm.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", help="a TOML file with [all], [axes], [[rows]] and [search]")
    add_experiment_arguments(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.experiments.spec import read_experiment

    run_experiments([read_experiment(Path(args.file))], args, console)
