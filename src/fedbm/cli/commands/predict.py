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
    good, bad = [], []
    for path, made in model.classify(args.images):
        if isinstance(made, str):
            bad.append(f"{path} is not a readable image: {made}" if path.exists() else f"{path} does not exist")
        else:
            good.append((path, model.classes[int(made.argmax())], made))
    if args.to:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([*COLUMNS, *model.classes])
        # a name that is not UTF-8 gets escapes, as in the notes on data sets
        files = [os.fsencode(path).decode("utf-8", "backslashreplace") for path, _, _ in good]
        writer.writerows([file, name, max(made), *made] for file, (_, name, made) in zip(files, good, strict=True))
        write_text(Path(args.to), lines.getvalue())
        console.print(f"{len(good)} images classified: {args.to}")
    elif good:
        rows = [(path, name, f"{100 * float(max(made)):.1f} %") for path, name, made in good]
        console.print(table("", COLUMNS, rows, text_columns=2))
    if len(bad) == 1:
        raise FedBMError(bad[0])
    if bad:
        console.print("\n".join(bad))
        raise FedBMError(f"{len(bad)} of {len(good) + len(bad)} files could not be classified")
