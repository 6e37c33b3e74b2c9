"""fedbm export: write the curves of runs for TensorBoard.

examples:
  fedbm export --tensorboard events                           then: tensorboard --logdir events
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import add_settings, runs_folder
from fedbm.errors import FedBMError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", help="run folders, folders of runs, or parts of ids (default: all in --out)")
    parser.add_argument("--tensorboard", required=True, metavar="DIR", help="folder for TensorBoard's event files")
    add_settings(parser, ["out"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.report.tensorboard import write_events
    from fedbm.runs.plan import find_runs
    from fedbm.runs.run_view import read_runs

    out = runs_folder(args)
    chosen = find_runs(out, args.runs)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to export. 'fedbm run' makes one.")
    for folder in write_events(read_runs(chosen), Path(args.tensorboard)):
        console.print(f"events: {folder}")
