"""Read HAM10000 as published: ISIC_*.jpg in one or more folders, next to HAM10000_metadata.csv.

These files do not contain DermaMNIST's published split, which refers to samples by number. The split made instead
keeps the images of a lesion together.
"""

from __future__ import annotations

from posixpath import basename, splitext

import numpy as np

from fedbm.data.catalog.entries import CATALOG
from fedbm.data.readers.file_tree import FileTree, Stamp
from fedbm.data.readers.sample_index import SampleIndex, Source, check_distinct, load_bytes, text_array
from fedbm.data.readers.table import parse_table
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.io import digest_of

_METADATA = ("ham10000_metadata", "ham10000_metadata.csv", "ham10000_metadata.tab")


def find(tree: FileTree, root: str) -> Source | None:
    """Return the source if there is a table with the name of HAM10000's, or None."""
    metadata = next((path for path in tree.files(root) if basename(path).lower() in _METADATA), None)
    if metadata is None:
        return None
    where = f"{metadata} in {tree.where}"
    content = load_bytes(next(tree.stream([metadata]))[1])
    table = parse_table(content, where)
    for name in ("image_id", "dx", "lesion_id"):
        if name not in table:
            raise FedBMError(f"{where} has no column {name}{did_you_mean(name, table)}: download the table again")
    names = table["image_id"]
    check_distinct(names, where)
    classes = tuple(CATALOG["ham10000"].classes)
    for name, dx in zip(names, table["dx"], strict=True):
        if dx not in classes:
            near = did_you_mean(dx, classes)
            raise FedBMError(f'{where} has the diagnosis "{dx}" for {name}{near}: it must be {join_words(classes)}')
    images: dict[str, tuple[str, Stamp]] = {}  # next to the table and one folder below; the first of two copies is used
    for folder in (root, *tree.folders(root)):
        for path, stamp in tree.entries(folder).items():
            name, ending = splitext(basename(path))
            if stamp and ending.lower() in (".jpg", ".jpeg", ".png"):
                images.setdefault(name, (path, stamp))
    if missing := [name for name in names if name not in images]:
        raise FedBMError(
            f"{len(missing)} of the {len(names)} images in the table are missing in {tree.where}, the first is "
            f"{missing[0]}.jpg: put both parts of HAM10000's images there"
        )
    files = [images[name] for name in names]
    index = SampleIndex(
        classes=classes,
        labels=np.array([classes.index(dx) for dx in table["dx"]]),
        split=None,
        ids=[f"{name}.jpg" for name in names],
        stream=lambda: tree.stream([path for path, _ in files]),
        columns={name: text_array(values) for name, values in table.items() if name not in ("image_id", "dx")},
        catalog_name="ham10000",
        notes=(
            "HAM10000's own files do not contain DermaMNIST's published split: use DermaMNIST's .npz to compare with "
            "results on it",
        ),
    )
    stamps = [[path, *stamp] for path, stamp in files]
    return Source(digest_of({"table": content.decode("utf-8", "replace"), "files": stamps}), lambda: index)
