"""fedbm data: list, get, prepare, inspect and partition data sets.

examples:
  fedbm data list                                   the catalogue: what there is, and how to get it
  fedbm data get bloodmnist --size 64               fetch a public file, or print what to download by hand
  fedbm data inspect ~/scans --size 64              counts, a sheet of samples, duplicates, warnings
  fedbm data partition ~/scans --clients 5 --beta 0.3 --picture partition.svg
'fedbm data PATH' is short for 'fedbm data partition PATH', 'fedbm data' for 'fedbm data list'.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedbm.cli.flags import add_json, add_setting, add_settings, check_ending, section_flags
from fedbm.cli.output import print_json
from fedbm.cli.parser import add_command
from fedbm.config.options import PARTITION_KEYS, DataOptions, check
from fedbm.data.catalog.entries import CATALOG
from fedbm.errors import FedBMError, did_you_mean

if TYPE_CHECKING:
    from fedbm.data.dataset import Dataset
    from fedbm.runs.run_config import Config

GET_EXAMPLES = """examples:
  fedbm data get bloodmnist                         128 pixels, the data set's own size
  fedbm data get dermamnist --size 64 --accept-licence
  fedbm data get kvasir                             prints what to download, from where, and where to put it
An interrupted download continues. Data in the default folder are found by name: --data bloodmnist.
"""
OWN_DATA = """
get: 'fedbm data get NAME' fetches it. by hand: the command prints what to download and where to put it.
Your own data: a folder of class/*.jpg (or train|val|test/class/*.jpg), a zip or tar of one, a CSV of path,label, or \
an .npz; try 'fedbm data inspect PATH'."""


def expand(words: Sequence[str]) -> list[str]:
    """Complete the short forms: 'data PATH' is 'data partition PATH', and 'data' is 'data list'."""
    if words[1:] in ([], ["--json"]):
        return ["data", "list", *words[1:]]
    word = words[1]
    if word in (*TASKS, "-h", "--help"):
        return list(words)
    near = did_you_mean(word, TASKS)
    if near and word not in CATALOG and not os.path.exists(word):
        raise FedBMError(f"\"{word}\" is neither a data set nor a task of fedbm data{near}. See 'fedbm data --help'.")
    return ["data", "partition", *words[1:]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK")
    image_flags = section_flags("data", without=["data", *PARTITION_KEYS])
    add_command(tasks, "list", "list the catalogue: names, classes, licences, and what is here already")

    get = add_command(tasks, "get", "fetch a data set, or print what to download by hand", GET_EXAMPLES)
    get.add_argument("what", metavar="NAME", help="a catalogued name")
    add_setting(get, "size", metavar="N", help="for MedMNIST: 28, 64, 128 or 224")
    get.add_argument("--to", metavar="DIR", help="where to put it (default downloads in $FEDBM_HOME or ~/.cache/fedbm)")
    get.add_argument("--accept-licence", action="store_true", help="accept a licence that limits what you may do")

    prepare = add_command(tasks, "prepare", "decode a data set now, so that runs start immediately")
    inspect = add_command(tasks, "inspect", "count, measure and show a data set, and print warnings")
    inspect.add_argument("--to", metavar="DIR", help="folder for samples.png and inspect.json (default inspect-NAME)")
    partition = add_command(tasks, "partition", "show a data set and its partition among clients")
    partition.add_argument("--picture", metavar="FILE", help="draw the partition (client × class) to this .svg file")
    partition.add_argument("--save", metavar="FILE", help="write it to this .json file, for --partition file")
    for task in tasks.choices.values():
        add_json(task)
    for task, more in ((prepare, ()), (inspect, ()), (partition, (*PARTITION_KEYS, "seed"))):
        task.add_argument("what", help="a catalogued name, or a path: an image folder, archive, table or .npz")
        add_settings(task, [*image_flags, *more, "cache"])


def execute(args: argparse.Namespace, console: Console) -> None:
    TASKS[args.task](args, console)


def list_catalog(args: argparse.Namespace, console: Console) -> None:
    """Print the catalogue."""
    from fedbm.cli.console_tables import table
    from fedbm.data.catalog.download import find_download
    from fedbm.data.dataset import download_folder

    rows, facts = [], []
    for entry in CATALOG.values():
        source = "get" if entry.md5 else "by hand" if entry.by_hand else "built in"
        if source != "built in" and find_download(entry.name, download_folder()):
            source = "here"
        rows.append((entry.name, entry.title, len(entry.classes), f"{entry.size} px", source, entry.licence))
        names = ("name", "title", "modality", "channels", "size", "licence", "citation", "origin")
        facts.append({key: getattr(entry, key) for key in names} | {"classes": entry.classes, "images": source})
    if args.json:
        print_json(facts)
    console.print(table("", ("name", "what", "classes", "size", "images", "licence"), rows, text_columns=2))
    console.print(OWN_DATA)


def get(args: argparse.Namespace, console: Console) -> None:
    """Fetch a data set, or print what to download by hand."""
    from fedbm.data.catalog.download import get as get_file
    from fedbm.data.dataset import download_folder
    from fedbm.runs.progress_display import show_download

    size = check(DataOptions, "size", args.settings.get("size"))
    to = Path(args.to).expanduser() if args.to else download_folder()
    with show_download(console) as progress:
        path = get_file(args.what, to, size=size, accept=args.accept_licence, progress=progress)
    if args.json:
        print_json({"name": args.what, "path": str(path)})
    console.print(f"here: {path}")
    console.print(f"next: fedbm data inspect {path if args.to else args.what}")


def prepare(args: argparse.Namespace, console: Console) -> None:
    """Decode a data set, and check every byte of its prepared copy."""
    import numpy as np

    _, dataset = load_and_print(args, console, verify=True)
    assert isinstance(dataset.images, np.memmap)
    folder = Path(str(dataset.images.filename)).parent
    console.print(f"prepared: {folder} ({dataset.images.nbytes / 1e6:,.0f} MB, every byte checked)")
    if args.json:
        print_json({**data_facts(dataset), "path": str(folder)})


def inspect(args: argparse.Namespace, console: Console) -> None:
    """Print what a data set contains and what may go wrong, and save a sheet of samples."""
    from fedbm.data.inspection.inspect import inspect as inspect_dataset
    from fedbm.data.inspection.inspect import save_contact_sheet
    from fedbm.utils.io import write_json

    _, dataset = load_and_print(args, console)
    inspection = inspect_dataset(dataset)
    console.print(repr(inspection))
    to = Path(args.to or f"inspect-{dataset.name}").expanduser()
    save_contact_sheet(to / "samples.png", dataset)
    write_json(to / "inspect.json", inspection.to_json())
    console.print(f"drawn: {to / 'samples.png'}")
    console.print(f"saved: {to / 'inspect.json'}")
    if args.json:
        print_json({**inspection.to_json(), "files": [str(to / "samples.png"), str(to / "inspect.json")]})


def partition(args: argparse.Namespace, console: Console) -> None:
    """Print the partition of a data set, and draw or save it."""
    from fedbm.cli.console_tables import describe_partition
    from fedbm.data.partition import heterogeneity
    from fedbm.runs.plan import make_partition
    from fedbm.runs.run_config import recommend
    from fedbm.utils.io import write_json

    check_ending("--picture", args.picture, ".svg")
    check_ending("--save", args.save, ".json")
    config, dataset = load_and_print(args, console)
    config = recommend(config, dataset.recommends)
    made = make_partition(config, dataset)
    counts, value = made.counts(dataset.labels, len(dataset.classes)), made.to_json(dataset.labels, dataset.classes)
    for part in describe_partition(made, dataset):
        console.print(part)
    if args.save:
        write_json(Path(args.save), value)
        console.print(f"saved: {args.save}")
    if args.picture:
        from fedbm.report.figures.matrices import partition_bubbles
        from fedbm.report.figures.svg import save_svg

        save_svg(Path(args.picture), partition_bubbles(counts, dataset.classes, f"{dataset.name}: who holds what"))
        console.print(f"drawn: {args.picture}")
    if args.json:
        print_json({**data_facts(dataset), "partition": value, "heterogeneity": heterogeneity(counts)})


def data_facts(dataset: Dataset) -> dict[str, Any]:
    """Return a data set as the tasks of 'fedbm data' print it as JSON."""
    return {
        "name": dataset.name,
        "checksum": dataset.checksum,
        "shape": dataset.shape,
        "classes": dict(zip(dataset.classes, dataset.concepts, strict=True)),
        "counts": dict(zip(("train", "val", "test"), dataset.counts().tolist(), strict=True)),
        "notes": dataset.notes,
    }


def load_and_print(args: argparse.Namespace, console: Console, verify: bool = False) -> tuple[Config, Dataset]:
    """Load the data set, decode it if necessary, and print its counts and notes."""
    from fedbm.cli.console_tables import table
    from fedbm.runs.plan import load_dataset
    from fedbm.runs.progress_display import show_decoding
    from fedbm.runs.run_config import check_config, configure

    config = configure("fedbm", {**args.settings, "data": args.what})
    check_config(config)
    with show_decoding(console) as progress:
        dataset = load_dataset(config, progress, verify)
    counts = dataset.counts()
    rows = [(name, dataset.concepts[k], *counts[:, k], counts[:, k].sum()) for k, name in enumerate(dataset.classes)]
    rows.append(("all", "", *counts.sum(axis=1), counts.sum()))
    title = f"{dataset.name}: {len(dataset.labels)} images of {dataset.shape}"
    console.print(table(title, ("class", "concept", "train", "val", "test", "all"), rows, text_columns=2))
    for note in dataset.notes:
        console.print(f"note: {note}")
    return config, dataset


TASKS = {"list": list_catalog, "get": get, "prepare": prepare, "inspect": inspect, "partition": partition}
