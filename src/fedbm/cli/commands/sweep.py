"""fedbm sweep: run a grid of your own as reproduce does, and choose on validation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.commands.reproduce import add_experiment_arguments, run_experiments
from fedbm.cli.parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

HELP = "run a grid of your own the same way, and choose on validation"
EXAMPLES = """examples:
  fedbm sweep grid.toml --seeds 3 --budget 1h
A file has [all] (settings by the names of the flags), [axes] (lists of values), [[rows]] (name and settings) and, to
choose on validation among values of some axes, [search] with choose = ["temperature"]. See docs/reproducing.md.
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", help="a TOML file with [all], [axes], [[rows]] and [search]")
    add_experiment_arguments(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.experiments.spec import read_experiment

    run_experiments([read_experiment(Path(args.file))], args, console)
