"""fedbm features: compute where the models of finished runs place test images, by t-SNE, with the text anchors.

examples:
  fedbm features fedbm-digits-s0 fedavg-digits-s0             then 'fedbm report' shows them
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import add_model_choice, add_settings, runs_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", help="run folders, ids or parts of ids")
    parser.add_argument("--records", default="results", metavar="DIR", help="records to update (default results)")
    add_model_choice(parser)
    add_settings(parser, ["out", "cache", "device", "data_dir"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.engine.run_folder import find_run
    from fedbm.runs.feature_map import write_features
    from fedbm.runs.run_record import write_record
    from fedbm.runs.run_view import read_run

    settings = {flag: value for flag, value in args.settings.items() if flag != "out"}
    for name in args.runs:
        folder = find_run(runs_folder(args), name)
        written = write_features(folder, settings, args.averaged, args.method)
        console.print(f"features: {written}; 'fedbm report {folder}' shows them")
        run = read_run(folder)
        record = Path(args.records) / "runs" / f"{run.id}.json"
        if record.is_file():
            write_record(run, record)
            console.print(f"record: {record}; 'fedbm report {args.records}' shows them too")
