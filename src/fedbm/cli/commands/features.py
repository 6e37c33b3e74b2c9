"""fedbm features: place test images by a finished run's features, with t-SNE."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_averaged, add_settings, given_settings, runs_folder
from fedbm.cli.parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

HELP = "show where finished runs' models put test images: t-SNE, with the text anchors"
EXAMPLES = """examples:
  fedbm features fedbm-digits-s0 fedavg-digits-s0             then 'fedbm report' shows them
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("runs", nargs="+", help="folders, ids or parts of ids")
    parser.add_argument(
        "--records",
        default="results",
        metavar="DIR",
        help="folder with a record of the run, which is updated (default results)",
    )
    add_averaged(parser)
    add_settings(parser, ["out", "cache", "device", "data_dir"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.runs.features import write_features
    from fedbm.runs.plan import find_run
    from fedbm.runs.reader import check_unedited, read_run
    from fedbm.runs.record import renew_record

    settings = {flag: value for flag, value in given_settings(args).items() if flag != "out"}
    for name in args.runs:
        folder = find_run(runs_folder(args), name)
        check_unedited(read_run(folder))  # else the record would show settings that were not computed
        written = write_features(folder, settings, args.averaged)
        console.print(f"features: {written}; 'fedbm report {folder}' shows them", soft_wrap=True)
        record = renew_record(read_run(folder), Path(args.records))
        if record is not None:
            console.print(f"record: {record}; 'fedbm report {args.records}' shows them too", soft_wrap=True)
        else:
            console.print(
                f"There is no record of this run in {args.records}; 'fedbm reproduce' and 'fedbm sweep' write them.",
                soft_wrap=True,
            )
