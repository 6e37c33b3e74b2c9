"""fedbm predict: what a finished run's model makes of image files, on the screen or as a table for other programs."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import given_keys
from fedbm.cli.tables import table
from fedbm.errors import FedBMError
from fedbm.runs.config import make_config, nest
from fedbm.runs.plan import find_run
from fedbm.runs.predict import files_in, load_model
from fedbm.utils.io import write_text


def predict(found: argparse.Namespace, console: Console) -> None:
    """Classify every file that can be read, then name those that cannot."""
    if found.to and Path(found.to).suffix != ".csv":
        raise FedBMError(f"--to writes a table of comma-separated values: name it {Path(found.to).stem}.csv")
    options = make_config(nest(given_keys(found))).engine
    model = load_model(find_run(Path(options.out), found.run), options.device, averaged=found.averaged)
    good, bad = [], []
    for path, made in model.classify(files_in(map(Path, found.images))):
        if isinstance(made, str):
            bad.append(f"{path} is no readable image: {made}")
        else:
            good.append((path, model.classes[int(made.argmax())], made))
    if found.to:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["file", "class", "probability", *model.classes])
        writer.writerows([path, name, max(made), *made] for path, name, made in good)
        write_text(Path(found.to), lines.getvalue())
        console.print(f"{len(good)} images classified: {found.to}", soft_wrap=True)
    elif good:
        rows = [(path, name, f"{100 * float(max(made)):.1f} %") for path, name, made in good]
        console.print(table("", ("file", "class", "probability"), rows, text_columns=2))
    if len(bad) == 1:
        raise FedBMError(bad[0])
    if bad:
        for why in bad:
            console.print(why, soft_wrap=True)
        raise FedBMError(f"{len(bad)} of {len(good) + len(bad)} files could not be classified")
