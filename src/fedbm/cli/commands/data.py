"""fedbm data list | get | prepare | inspect | partition."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_settings, check_applies, flags_of, given_settings
from fedbm.cli.parser import Parser, add_command
from fedbm.config.options import DEALING
from fedbm.data.catalog.lookup import CATALOG
from fedbm.errors import FedBMError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from fedbm.data.dataset import Dataset
    from fedbm.runs.config import Config

HELP = "list, get, prepare, inspect and partition data sets"
EXAMPLES = """examples:
  fedbm data list                                   the catalogue: what there is, and how to get it
  fedbm data get bloodmnist --size 64               fetch a public file, or read what to download by hand
  fedbm data inspect ~/scans --size 64              counts, a sheet of samples, duplicates, warnings
  fedbm data partition ~/scans --clients 5 --beta 0.3 --picture who-holds-what.svg
'fedbm data PATH' is short for 'fedbm data partition PATH', 'fedbm data' for 'fedbm data list'.
"""
GET_EXAMPLES = """examples:
  fedbm data get bloodmnist                         128 pixels, the data set's own size
  fedbm data get dermamnist --size 64 --accept-licence
  fedbm data get kvasir                             prints what to download, from where, and where to put it
An interrupted download continues. Data in the default folder are found by name: --data bloodmnist.
"""
WHAT = "a catalogued name, or a path: an image folder, archive, table or .npz"


def expand(words: Sequence[str]) -> list[str]:
    """Complete the short forms: 'data PATH' is 'data partition PATH', and 'data' is 'data list'."""
    words = list(words)
    if words[1:2] in ([task] for task in (*TASKS, "-h", "--help")):
        return words
    if len(words) == 1:
        return ["data", "list"]
    near = did_you_mean(words[1], TASKS)
    if near and words[1] not in CATALOG and not os.path.exists(words[1]):
        raise FedBMError(
            f"\"{words[1]}\" is neither a data set nor a task of fedbm data{near}. See 'fedbm data --help'."
        )
    return ["data", "partition", *words[1:]]


def add_arguments(parser: Parser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK", parser_class=Parser)
    reading = flags_of("data", without=["data", *DEALING])
    add_command(tasks, "list", "list the catalogue: names, classes, licences, and what is here already")

    get = add_command(tasks, "get", "fetch a data set, or print what to download by hand", epilog=GET_EXAMPLES)
    get.add_argument("what", metavar="NAME", help="a catalogued name")
    get.add_argument("--size", default=argparse.SUPPRESS, metavar="N", help="for MedMNIST: 28, 64, 128 or 224")
    get.add_argument("--to", metavar="DIR", help="where to put it (default downloads in $FEDBM_HOME or ~/.cache/fedbm)")
    get.add_argument("--accept-licence", action="store_true", help="accept a licence that limits what you may do")

    prepare = add_command(tasks, "prepare", "decode a data set now, so that runs start at once")
    prepare.add_argument("what", help=WHAT)
    add_settings(prepare, [*reading, "cache"])

    inspect = add_command(tasks, "inspect", "count, measure and show a data set, and warn of what may go wrong")
    inspect.add_argument("what", help=WHAT)
    inspect.add_argument("--to", metavar="DIR", help="folder for samples.png and inspect.json (default inspect-NAME)")
    add_settings(inspect, [*reading, "cache"])

    partition = add_command(tasks, "partition", "show a data set and its partition among clients")
    partition.add_argument("what", help=WHAT)
    partition.add_argument("--picture", metavar="FILE", help="draw the partition (client × class) to this .svg file")
    partition.add_argument("--save", metavar="FILE", help="write it to this .json file, for --partition file")
    add_settings(partition, [*reading, *DEALING, "seed", "cache"])


def execute(args: argparse.Namespace, console: Console) -> None:
    TASKS[args.task](args, console)


def list_catalog(args: argparse.Namespace, console: Console) -> None:
    """Print the catalogue."""
    from fedbm.cli.tables import catalog_table

    console.print(catalog_table())
    console.print(
        "\nget: 'fedbm data get NAME' fetches it. by hand: the command prints what to download and where to put it."
        "\nYour own data: a folder of class/*.jpg (or train|val|test/class/*.jpg), a zip or tar of one, a CSV of "
        "path,label, or an .npz; try 'fedbm data inspect PATH'."
    )


def get(args: argparse.Namespace, console: Console) -> None:
    """Fetch a data set, or print what to download by hand."""
    from fedbm.cli.progress import fetching
    from fedbm.config.options import DataOptions, check
    from fedbm.data.catalog.download import get as get_file
    from fedbm.data.dataset import download_folder

    size = check(DataOptions, "size", getattr(args, "size", None))
    to = Path(args.to).expanduser() if args.to else download_folder()
    with fetching(console) as progress:
        path = get_file(args.what, to, size=size, accept=args.accept_licence, progress=progress)
    console.print(f"here: {path}", soft_wrap=True)
    console.print(f"next: fedbm data inspect {path if args.to else args.what}", soft_wrap=True)


def prepare(args: argparse.Namespace, console: Console) -> None:
    """Decode a data set, and check every byte of its prepared copy."""
    import numpy as np

    from fedbm.data.cache import remove_if_damaged

    _, dataset = read(args, console)
    if isinstance(dataset.images, np.memmap) and dataset.images.filename is not None:
        place = Path(dataset.images.filename).parent
        if damage := remove_if_damaged(place):
            console.print(f"note: the prepared copy {place} was damaged ({damage}) and is made again", soft_wrap=True)
            read(args, console)
        megabytes = f"{dataset.images.nbytes / 1e6:,.0f} MB"
        console.print(f"prepared: {place} ({megabytes}, every byte checked)", soft_wrap=True)


def inspect(args: argparse.Namespace, console: Console) -> None:
    """Print what a data set contains and what may go wrong, and save a sheet of samples."""
    from fedbm.cli.tables import inspection_words
    from fedbm.data.inspection.contact_sheet import save_contact_sheet
    from fedbm.data.inspection.inspect import inspect as inspect_dataset
    from fedbm.utils.io import write_json

    _, dataset = read(args, console)
    seen = inspect_dataset(dataset)
    for sentence in inspection_words(seen):
        console.print(sentence)
    for sentence in seen.warnings:
        console.print(f"warning: {sentence}")
    to = Path(args.to or f"inspect-{dataset.name}").expanduser()
    save_contact_sheet(to / "samples.png", dataset)
    write_json(to / "inspect.json", seen.to_json())
    console.print(f"drawn: {to / 'samples.png'}", soft_wrap=True)
    console.print(f"saved: {to / 'inspect.json'}", soft_wrap=True)


def partition(args: argparse.Namespace, console: Console) -> None:
    """Print the partition of a data set, and draw or save it."""
    from fedbm.cli.tables import client_names, partition_table, partition_words
    from fedbm.runs.config import recommend
    from fedbm.runs.plan import make_partition
    from fedbm.utils.io import write_json

    if args.picture and Path(args.picture).suffix.lower() != ".svg":
        raise FedBMError(f"--picture draws an SVG file. Give it a name that ends in .svg, not {args.picture}.")
    config, dataset = read(args, console)
    config = recommend(config, dataset.recommends)
    check_applies(given_settings(args), config)
    dealt = make_partition(config, dataset)
    counts = dealt.counts(dataset.labels, len(dataset.classes))
    console.print(partition_table(counts, dataset.classes, client_names(dealt)))
    for sentence in partition_words(dealt, counts):
        console.print(sentence)
    if args.save:
        write_json(Path(args.save), dealt.to_json(dataset.labels, dataset.classes))
        console.print(f"saved: {args.save}", soft_wrap=True)
    if args.picture:
        from fedbm.report.figures.matrices import partition_bubbles
        from fedbm.report.figures.svg import save_svg

        save_svg(Path(args.picture), partition_bubbles(counts, dataset.classes, f"{dataset.name}: who holds what"))
        console.print(f"drawn: {args.picture}", soft_wrap=True)


def read(args: argparse.Namespace, console: Console) -> tuple[Config, Dataset]:
    """Load the data set, decode it if necessary, and print it with its notes."""
    from fedbm.cli.progress import decoding
    from fedbm.cli.tables import dataset_table
    from fedbm.runs.config import check_config, make_config, nest
    from fedbm.runs.plan import load_dataset

    given = given_settings(args)
    config = check_config(make_config(nest({**given, "data": args.what})))
    check_applies(given, config, recommended=False)
    with decoding(console) as progress:
        dataset = load_dataset(config, progress)
    console.print(dataset_table(dataset))
    for note in dataset.notes:
        console.print(f"note: {note}")
    return config, dataset


TASKS = {
    "list": list_catalog,
    "get": get,
    "prepare": prepare,
    "inspect": inspect,
    "partition": partition,
}
