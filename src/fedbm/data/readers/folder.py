"""class/*.jpg, or train|val|test/class/*.jpg → which file is which sample, without opening any.

Every visible file of a class folder counts as a sample. What turns out to be no image is refused or skipped
by name when it is decoded, never passed over in silence; a folder there is refused, since it may hold many.
"""

from __future__ import annotations

import numpy as np

from fedbm.data.readers.file_tree import Tree, list_folders, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source
from fedbm.data.splits import SIDES, SPLITS, check_usable
from fedbm.errors import FedBMError, did_you_mean
from fedbm.utils.io import digest_of

LAYOUT = "one folder of JPEG or PNG images per class, directly or inside train, val and test"
DEEPER = "images that lie deeper, such as in a folder per patient, are named by a table path,label,patient"


def find(tree: Tree, root: str = "") -> Source:
    """The samples under *root*: sides, classes and files each in the order of their names."""
    sides = _sides(tree, root)
    class_folders = [(side, node) for side, top in sides for node in list_folders(tree, top)]
    found = [
        (side, normalize_name(node.name), entry) for side, node in class_folders for entry in tree.entries(node.path)
    ]
    if all(entry.is_folder for _, _, entry in found):
        raise FedBMError(
            f"{tree.where} holds no images where they are looked for{_misspelt(tree, root)}: it should hold {LAYOUT}; "
            f"{DEEPER}"
        )
    if inner := [entry.path for _, _, entry in found if entry.is_folder]:
        more = f" and {len(inner) - 1} more" if len(inner) > 1 else ""
        raise FedBMError(
            f'{tree.where} has a folder inside a class folder, "{normalize_name(inner[0])}"{more}: {DEEPER}'
        )
    classes = tuple(sorted({normalize_name(node.name) for _, node in class_folders}))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[name] for _, name, _ in found], dtype=np.int64)
    split = np.array([side for side, _, _ in found], dtype=np.uint8) if len(sides) > 1 else None
    check_usable(labels, split, classes, tree.where)
    paths = [entry.path for _, _, entry in found]
    ids = [normalize_name(path.removeprefix(f"{root}/")) for path in paths]
    index = SampleIndex(classes, labels, split, ids, lambda: tree.stream(paths))
    stamps = [[name, *tree.stamp(path)] for name, path in zip(ids, paths, strict=True)]
    return Source(digest_of({"files": stamps}), lambda: index)


def _sides(tree: Tree, root: str) -> list[tuple[int, str]]:
    """The folders that hold class folders: train, val and test, or the root alone."""
    tops = list_folders(tree, root)
    if not tops:
        raise FedBMError(f"{tree.where} has no folders in it: it should hold {LAYOUT}")
    named = [(SIDES[top.name.lower()], top) for top in tops if top.name.lower() in SIDES]
    if not any(side == 0 for side, _ in named) and len(named) < len(tops):
        return [(0, root)]
    for side, name in enumerate(SPLITS):
        having = [top.name for number, top in named if number == side]
        if len(having) != 1:
            raise FedBMError(
                f"{tree.where} has {' and '.join(having) or 'no folder'} for {name}: it should hold one train, "
                "one val and one test folder, or the class folders directly"
            )
    return sorted((side, top.path) for side, top in named)


def _misspelt(tree: Tree, root: str) -> str:
    """Which folder may have been meant as train, val or test, where others are called so."""
    tops = [top.name for top in list_folders(tree, root)]
    if not any(name.lower() in SIDES for name in tops):
        return ""
    strange = [name for name in tops if name.lower() not in SIDES]
    return f' but has a folder "{strange[0]}"{did_you_mean(strange[0].lower(), SIDES)}'
