"""fedbm predict: classify image files with a finished run's model, on the screen or to a CSV file."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_averaged, add_settings, given_settings, runs_folder
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from rich.console import Console

HELP = "classify image files with a finished run's model"
EXAMPLES = """examples:
  fedbm predict fedbm-digits-s0 a.png b.png                   the likeliest class of each
  fedbm predict fedbm-scans-s0 new/ --to new.csv              a folder; the probability of every class
A file that cannot be read is named; the others are classified.
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", help="its folder, its id, or a part of the id")
    parser.add_argument("images", nargs="+", help="image files, or folders of them")
    parser.add_argument("--to", metavar="FILE.csv", help="write the probability of every class there instead")
    add_averaged(parser)
    add_settings(parser, ["out", "device"])


def execute(args: argparse.Namespace, console: Console) -> None:
    """Classify every file that can be read, then name those that cannot."""
    from fedbm.cli.tables import table
    from fedbm.config.options import EngineOptions, check
    from fedbm.runs.plan import find_run
    from fedbm.runs.predict import files_in, load_model
    from fedbm.utils.io import write_text

    if args.to and Path(args.to).suffix != ".csv":
        raise FedBMError(f"--to writes a CSV file. Name it {Path(args.to).stem}.csv.")
    device = check(EngineOptions, "device", given_settings(args).get("device", EngineOptions.device))
    model = load_model(find_run(runs_folder(args), args.run), device, averaged=args.averaged)
    good, bad = [], []
    for path, made in model.classify(files_in(map(Path, args.images))):
        if isinstance(made, str):
            bad.append(f"{path} is not a readable image: {made}")
        else:
            good.append((path, model.classes[int(made.argmax())], made))
    if args.to:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["file", "class", "probability", *model.classes])
        writer.writerows([path, name, max(made), *made] for path, name, made in good)
        write_text(Path(args.to), lines.getvalue())
        console.print(f"{len(good)} images classified: {args.to}", soft_wrap=True)
    elif good:
        rows = [(path, name, f"{100 * float(max(made)):.1f} %") for path, name, made in good]
        console.print(table("", ("file", "class", "probability"), rows, text_columns=2))
    if len(bad) == 1:
        raise FedBMError(bad[0])
    if bad:
        for why in bad:
            console.print(why, soft_wrap=True)
        raise FedBMError(f"{len(bad)} of {len(good) + len(bad)} files could not be classified")
