"""fedbm export: write runs' curves for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_settings, runs_folder
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from rich.console import Console

HELP = "write runs' curves for other programs to show"
EXAMPLES = """examples:
  fedbm export --tensorboard events                           then: tensorboard --logdir events
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("runs", nargs="*", help="folders of one or many, ids or parts of ids (default: all in --out)")
    parser.add_argument("--tensorboard", required=True, metavar="DIR", help="folder for TensorBoard's event files")
    add_settings(parser, ["out"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.report.tensorboard import write_events
    from fedbm.runs.plan import find_runs
    from fedbm.runs.reader import read_runs

    out = runs_folder(args)
    chosen = find_runs(out, args.runs)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to export")
    for folder in write_events(read_runs(chosen), Path(args.tensorboard)):
        console.print(f"events: {folder}", soft_wrap=True)
