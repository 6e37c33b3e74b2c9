"""fedbm predict: classify image files with the model of a finished run.

examples:
  fedbm predict fedbm-digits-s0 a.png b.png                   the most probable class of each file
  fedbm predict fedbm-scans-s0 new/ --to new.csv              a folder; the probability of every class
The command names each file that it cannot read and classifies the others.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import add_model_choice, add_settings, check_ending, runs_folder
from fedbm.config.options import EngineOptions, check
from fedbm.errors import FedBMError

COLUMNS = ("file", "class", "probability")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run: its folder, its id, or a part of the id")
    parser.add_argument("images", nargs="+", help="image files, or folders of them")
    parser.add_argument("--to", metavar="FILE.csv", help="write the probability of every class to this file instead")
    add_model_choice(parser)
    add_settings(parser, ["out", "device"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import table
    from fedbm.engine.run_folder import find_run
    from fedbm.runs.prediction import load_model
    from fedbm.utils.io import check_replaceable, write_text

    if args.to:
        check_ending("--to", args.to, ".csv")
        check_replaceable(Path(args.to), ",".join(COLUMNS))
    device = check(EngineOptions, "device", args.settings.get("device", EngineOptions.device))
    model = load_model(find_run(runs_folder(args), args.run), device, method=args.method, averaged=args.averaged)
    rows, bad = [], []
    for path, found in model.classify(args.images):
        if isinstance(found, str):
            bad.append(f"{path} is not a readable image: {found}" if path.exists() else f"{path} does not exist")
        else:
            # a name that is not UTF-8 gets escapes, as in the notes on data sets
            name = os.fsencode(path).decode("utf-8", "backslashreplace")
            rows.append((name, model.classes[found.argmax()], max(found), *found))
    if args.to:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([[*COLUMNS, *model.classes], *rows])
        write_text(Path(args.to), lines.getvalue())
        console.print(f"{len(rows)} images classified: {args.to}")
    elif rows:
        shown = [(name, label, f"{100 * float(highest):.1f} %") for name, label, highest, *_ in rows]
        console.print(table("", COLUMNS, shown, text_columns=2))
    for sentence in bad:
        console.print(sentence)
    if bad:
        raise FedBMError(f"{len(bad)} of {len(rows) + len(bad)} files could not be classified, the first: {bad[0]}")
