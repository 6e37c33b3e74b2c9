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
    from fedbm.engine.run_folder import find_runs
    from fedbm.runs.run_view import read_runs
    from fedbm.runs.tracking import scalars

    out = runs_folder(args)
    chosen = find_runs(out, args.runs)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to export. 'fedbm run' makes one.")
    runs = read_runs(chosen)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FedBMError('writing events needs tensorboard: pip install "fedbm[tensorboard]"') from error
    for run in runs:
        folder = Path(args.tensorboard) / run.id
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):  # TensorBoard would show both
            raise FedBMError(f"{folder} already contains files. Remove it, or choose another folder.")
        with SummaryWriter(str(folder)) as writer:
            for record in run.rounds:
                for name, value in scalars(record):
                    writer.add_scalar(name, value, record.round)
        console.print(f"events: {folder}")
