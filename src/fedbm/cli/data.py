"""fedbm data list | get | prepare | inspect | partition."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from fedbm.cli.flags import check_matters, given_keys
from fedbm.cli.live import decoding, fetching
from fedbm.cli.tables import (
    catalog_table,
    client_names,
    dataset_table,
    inspection_words,
    partition_table,
    partition_words,
)
from fedbm.config.options import DataOptions, check
from fedbm.data.dataset import Dataset, download_folder
from fedbm.errors import FedBMError
from fedbm.runs.config import Config, check_config, make_config, nest, recommend
from fedbm.utils.io import write_json


def data(found: argparse.Namespace, console: Console) -> None:
    TASKS[found.task](found, console)


def listing(found: argparse.Namespace, console: Console) -> None:
    console.print(catalog_table())
    console.print(
        "\nget: 'fedbm data get NAME' fetches it. by hand: the same command says what to download and where to put it."
        "\nData of your own: a folder of class/*.jpg (or train|val|test/class/*.jpg), a zip or tar of one, a CSV of "
        "path,label, or an .npz; try 'fedbm data inspect PATH'."
    )


def get(found: argparse.Namespace, console: Console) -> None:
    from fedbm.data.catalog.download import get as get_file

    size = check(DataOptions, "size", getattr(found, "size", None))
    to = Path(found.to).expanduser() if found.to else download_folder()
    with fetching(console) as progress:
        path = get_file(found.what, to, size=size, accept=found.accept_licence, progress=progress)
    console.print(f"here: {path}", soft_wrap=True)
    console.print(f"next: fedbm data inspect {path if found.to else found.what}", soft_wrap=True)


def prepare(found: argparse.Namespace, console: Console) -> None:
    from fedbm.data.cache import remove_if_damaged

    _, dataset = read(found, console)
    if isinstance(dataset.images, np.memmap) and dataset.images.filename is not None:
        place = Path(dataset.images.filename).parent
        if damage := remove_if_damaged(place):
            console.print(f"note: the prepared copy {place} was damaged ({damage}) and is made anew", soft_wrap=True)
            read(found, console)
        megabytes = f"{dataset.images.nbytes / 1e6:,.0f} MB"
        console.print(f"prepared: {place} ({megabytes}, every byte checked)", soft_wrap=True)


def inspect(found: argparse.Namespace, console: Console) -> None:
    from fedbm.data.inspection.contact_sheet import save_contact_sheet
    from fedbm.data.inspection.inspect import inspect as look_at

    _, dataset = read(found, console)
    seen = look_at(dataset)
    for sentence in inspection_words(seen):
        console.print(sentence)
    for sentence in seen.warnings:
        console.print(f"warning: {sentence}")
    to = Path(found.to or f"inspect-{dataset.name}").expanduser()
    save_contact_sheet(to / "samples.png", dataset)
    write_json(to / "inspect.json", seen.to_json())
    console.print(f"drawn: {to / 'samples.png'}", soft_wrap=True)
    console.print(f"saved: {to / 'inspect.json'}", soft_wrap=True)


def partition(found: argparse.Namespace, console: Console) -> None:
    from fedbm.runs.plan import deal

    if found.picture and Path(found.picture).suffix.lower() != ".svg":
        raise FedBMError(f"--picture draws an SVG: give it a name that ends in .svg, not {found.picture}")
    config, dataset = read(found, console)
    config = recommend(config, dataset.recommends)
    check_matters(given_keys(found), config)
    dealt = deal(config, dataset)
    counts = dealt.counts(dataset.labels, len(dataset.classes))
    console.print(partition_table(counts, dataset.classes, client_names(dealt)))
    for sentence in partition_words(dealt, counts):
        console.print(sentence)
    if found.save:
        write_json(Path(found.save), dealt.to_json(dataset.labels, dataset.classes))
        console.print(f"saved: {found.save}", soft_wrap=True)
    if found.picture:
        from fedbm.report.figures.matrices import partition_bubbles
        from fedbm.report.figures.svg import save_svg

        save_svg(Path(found.picture), partition_bubbles(counts, dataset.classes, f"{dataset.name}: who holds what"))
        console.print(f"drawn: {found.picture}", soft_wrap=True)


def read(found: argparse.Namespace, console: Console) -> tuple[Config, Dataset]:
    """The data set that is asked for, decoded if need be, shown with its notes."""
    from fedbm.runs.plan import load_dataset

    given = given_keys(found)
    config = check_config(make_config(nest({**given, "data": found.what})))
    check_matters(given, config, recommended=False)
    with decoding(console) as progress:
        dataset = load_dataset(config, progress)
    console.print(dataset_table(dataset))
    for note in dataset.notes:
        console.print(f"note: {note}")
    return config, dataset


TASKS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "list": listing,
    "get": get,
    "prepare": prepare,
    "inspect": inspect,
    "partition": partition,
}
