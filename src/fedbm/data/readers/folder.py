"""List the samples of class/*.jpg or train|val|test/class/*.jpg without opening a file.

Every visible file in a class folder is a sample. Files that are not images are reported when they are decoded. A folder
inside a class folder is an error, because it may contain many samples.
"""

from __future__ import annotations

import numpy as np

from fedbm.data.readers.file_tree import Tree, list_folders, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source
from fedbm.data.splits import SPLIT_CODES, SPLITS
from fedbm.errors import FedBMError, did_you_mean, shorten_list
from fedbm.utils.io import digest_of

LAYOUT = "one folder of JPEG or PNG images per class, directly or inside train, val and test"
DEEPER = "list images in deeper folders, such as one per patient, in a table path,label,patient"


def find(tree: Tree, root: str = "") -> Source:
    """Return the samples under *root*, sorted by subset, class and file name."""
    subsets = _find_subsets(tree, root)
    class_folders = [(subset, node) for subset, top in subsets for node in list_folders(tree, top)]
    found = [
        (subset, normalize_name(node.name), entry)
        for subset, node in class_folders
        for entry in tree.entries(node.path)
    ]
    if all(entry.is_folder for _, _, entry in found):
        raise FedBMError(
            f"{tree.where} has no images in class folders{_find_misspelling(tree, root)}: it should contain {LAYOUT}; "
            f"{DEEPER}"
        )
    if inner := [entry.path for _, _, entry in found if entry.is_folder]:
        names = shorten_list([f'"{normalize_name(path)}"' for path in inner], 1)
        raise FedBMError(f"{tree.where} has a folder inside a class folder, {names}: {DEEPER}")
    classes = tuple(sorted({normalize_name(node.name) for _, node in class_folders}))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[name] for _, name, _ in found], dtype=np.int64)
    split = np.array([subset for subset, _, _ in found], dtype=np.uint8) if len(subsets) > 1 else None
    paths = [entry.path for _, _, entry in found]
    ids = [normalize_name(path.removeprefix(f"{root}/")) for path in paths]
    index = SampleIndex(classes, labels, split, ids, lambda: tree.stream(paths))
    stamps = [[name, *tree.stamp(path)] for name, path in zip(ids, paths, strict=True)]
    return Source(digest_of({"files": stamps}), lambda: index)


def _find_subsets(tree: Tree, root: str) -> list[tuple[int, str]]:
    """Return the folders that contain class folders: train, val and test, or only the root."""
    tops = list_folders(tree, root)
    if not tops:
        raise FedBMError(f"{tree.where} contains no folders: it should contain {LAYOUT}")
    named = [(SPLIT_CODES[top.name.lower()], top) for top in tops if top.name.lower() in SPLIT_CODES]
    if not any(code == 0 for code, _ in named) and len(named) < len(tops):
        return [(0, root)]
    for code, name in enumerate(SPLITS):
        candidates = [top.name for other, top in named if other == code]
        if len(candidates) != 1:
            raise FedBMError(
                f"{tree.where} has {' and '.join(candidates) or 'no folder'} for {name}: it should contain one train, "
                "one val and one test folder, or only class folders"
            )
    return sorted((code, top.path) for code, top in named)


def _find_misspelling(tree: Tree, root: str) -> str:
    """Return a hint about a folder that may be a misspelt train, val or test."""
    tops = [top.name for top in list_folders(tree, root)]
    if not any(name.lower() in SPLIT_CODES for name in tops):
        return ""
    unknown = [name for name in tops if name.lower() not in SPLIT_CODES]
    return f' but has a folder "{unknown[0]}"{did_you_mean(unknown[0].lower(), SPLIT_CODES)}'
