"""List the samples of class/*.jpg or train|val|test/class/*.jpg without opening a file.

Every visible file in a class folder is a sample, unless its name shows that it is a text or a document. Other files
that are not images are reported when they are decoded. A folder inside a class folder is an error, because it may
contain many samples.
"""

from __future__ import annotations

from posixpath import basename

import numpy as np

from fedbm.data.readers.file_tree import FileTree, is_document, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source
from fedbm.data.splits import SPLIT_CODES, SPLITS
from fedbm.errors import FedBMError, did_you_mean, shorten_list
from fedbm.utils.io import digest_of
from fedbm.utils.text import format_count

LAYOUT = "one folder of images per class, directly or inside train, val and test"
DEEPER = "list images in deeper folders, such as one per patient, in a table path,label,patient"
RUN_FILES = ("lock", "config.toml")  # every run has one of them
LABELS = "if a table has the labels, use --metadata TABLE --label-column COLUMN"


def find(tree: FileTree, root: str = "") -> Source:
    """Return the samples under *root*, sorted by subset, class and file name."""
    subsets = _find_subsets(tree, root)
    class_folders = [(subset, folder) for subset, top in subsets for folder in _list_folders(tree, top)]
    classes = tuple(sorted({normalize_name(basename(folder)) for _, folder in class_folders}))
    label_of = {name: label for label, name in enumerate(classes)}
    tops = dict.fromkeys([root, *(top for _, top in subsets)])
    ignored = [path for top in tops for path in tree.files(top) if not is_document(path)]
    labels, split, stamps, empty = [], [], {}, []
    for subset, folder in class_folders:
        found = tree.entries(folder)
        entries = {path: stamp for path, stamp in found.items() if stamp is None or not is_document(path)}
        ignored += [path for path in found if path not in entries]
        stamps.update(entries)
        empty += [] if entries else [folder]
        labels += [label_of[normalize_name(basename(folder))]] * len(entries)
        split += [subset] * len(entries)
    if not any(stamps.values()):
        raise FedBMError(
            f"{tree.where} has no images in class folders{_find_misspelling(tree, root)}: it should contain {LAYOUT}; "
            f"{DEEPER}"
        )
    if inner := [f'"{normalize_name(path)}"' for path, stamp in stamps.items() if stamp is None]:
        raise FedBMError(f"{tree.where} has a folder inside a class folder, {shorten_list(inner, 1)}: {DEEPER}")
    ids = [normalize_name(path.removeprefix(f"{root}/")) for path in stamps]
    notes: tuple[str, ...] = ()
    if ignored:
        count = format_count(
            len(ignored), "file that is not an image of a class", "files that are not images of a class"
        )
        notes = (f"ignored {count}: {shorten_list(list(map(normalize_name, ignored)), 3)}",)
    index = SampleIndex(
        classes=classes,
        labels=np.array(labels, dtype=np.int64),
        split=None if subsets == [(0, root)] else np.array(split, dtype=np.uint8),
        ids=ids,
        stream=lambda: tree.stream(list(stamps)),
        notes=notes,
    )
    files = [[name, *(stamp or ())] for name, stamp in zip(ids, stamps.values(), strict=True)]
    more = {"empty": list(map(normalize_name, empty))} if empty else {}  # classes without images
    return Source(digest_of({"files": files, **more}), lambda: index)


def _find_subsets(tree: FileTree, root: str) -> list[tuple[int, str]]:
    """Return the folders that contain class folders: train, val and test, or only the root."""
    tops = _list_folders(tree, root)
    if not tops:
        raise FedBMError(f"{tree.where} contains no folders: it should contain {LAYOUT}; {LABELS}")
    named = [(code, top) for top in tops if (code := SPLIT_CODES.get(basename(top).lower())) is not None]
    if not any(code == 0 for code, _ in named) and len(named) < len(tops):
        return [(0, root)]
    for code, name in enumerate(SPLITS):
        candidates = [basename(top) for other, top in named if other == code]
        if not candidates and name != "train" and len(named) == len(tops):  # choose_split() decides
            continue
        if len(candidates) != 1:
            other = "" if candidates else _find_misspelling(tree, root)
            raise FedBMError(
                f"{tree.where} has {' and '.join(candidates) or 'no folder'} for {name}{other}: it should contain one "
                "train, one val and one test folder, or only class folders"
            )
    return sorted(named)


def _list_folders(tree: FileTree, root: str) -> list[str]:
    """Return the folders in *root*, without those that commands write if they are called there."""

    def is_written(folder: str) -> bool:
        if basename(folder) == "runs":
            return any(f"{run}/{name}" in tree.files(run) for run in tree.folders(folder) for name in RUN_FILES)
        return basename(folder).startswith("inspect-") and f"{folder}/inspect.json" in tree.files(folder)

    return [folder for folder in tree.folders(root) if not is_written(folder)]


def _find_misspelling(tree: FileTree, root: str) -> str:
    """Return a hint about a folder that may be a misspelt train, val or test."""
    tops = [basename(top) for top in tree.folders(root)]
    unknown = [name for name in tops if name.lower() not in SPLIT_CODES]
    if not unknown or len(unknown) == len(tops):
        return ""
    return f' but has a folder "{unknown[0]}"{did_you_mean(unknown[0].lower(), SPLIT_CODES)}'
