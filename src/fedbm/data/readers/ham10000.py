"""Read HAM10000 as published: ISIC_*.jpg in one or more folders, next to HAM10000_metadata.csv.

These files do not contain DermaMNIST's published split, which refers to samples by number. The split made instead
keeps the images of a lesion together.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import numpy as np

from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.readers.file_tree import Tree, list_files, list_folders
from fedbm.data.readers.sample_index import SampleIndex, Source, check_distinct, text_array
from fedbm.data.readers.table import parse_table, require_columns
from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.utils.io import digest_of

_METADATA = ("ham10000_metadata", "ham10000_metadata.csv", "ham10000_metadata.tab")


def find_metadata(tree: Tree, root: str = "") -> str | None:
    """Return the path of the metadata table, or None. A folder with this table is HAM10000."""
    return next((node.path for node in list_files(tree, root) if node.name.lower() in _METADATA), None)


def find(tree: Tree, metadata: str, root: str = "") -> Source:
    where = f"{metadata} in {tree.where}"
    content = tree.read(metadata)
    table = parse_table(content, where)
    require_columns(table, ("image_id", "dx", "lesion_id"), where, "download HAM10000's table again")
    names = table["image_id"]
    check_distinct(names, where)
    classes = tuple(CATALOG["ham10000"].classes)
    for name, dx in zip(names, table["dx"], strict=True):
        if dx not in classes:
            near = did_you_mean(dx, classes)
            raise FedBMError(f'{where} has the diagnosis "{dx}" for {name}{near}: it must be {join_words(classes)}')
    images = _find_images(tree, root)
    if missing := [name for name in names if name not in images]:
        raise FedBMError(
            f"{len(missing)} of the {len(names)} images in the table are missing in {tree.where}, the first is "
            f"{missing[0]}.jpg: put both parts of HAM10000's images there"
        )
    paths = [images[name] for name in names]
    index = SampleIndex(
        classes=classes,
        labels=np.array([classes.index(dx) for dx in table["dx"]]),
        split=None,
        ids=[f"{name}.jpg" for name in names],
        stream=lambda: tree.stream(paths),
        columns={name: text_array(values) for name, values in table.items() if name not in ("image_id", "dx")},
        known_as="ham10000",
        notes=(
            "HAM10000's own files do not contain DermaMNIST's published split: use DermaMNIST's .npz to compare with "
            "results on it",
        ),
    )
    stamps = [[path, *tree.stamp(path)] for path in paths]
    return Source(digest_of({"table": content.decode("utf-8", "replace"), "files": stamps}), lambda: index)


def _find_images(tree: Tree, root: str) -> dict[str, str]:
    """Return image name → path, next to the table and one folder below. The first of two copies is used."""
    found: dict[str, str] = {}
    for place in (root, *(node.path for node in list_folders(tree, root))):
        for node in list_files(tree, place):
            if node.name.lower().endswith((".jpg", ".jpeg", ".png")):
                found.setdefault(PurePosixPath(node.name).stem, node.path)
    return found
