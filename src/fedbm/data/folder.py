"""class/*.jpg, or train|val|test/class/*.jpg → which file is which sample, without opening any.

Every visible entry of a class folder counts as a sample. What turns out to be no image is refused or skipped
by name when it is decoded, never passed over in silence.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import numpy as np

from fedbm.data.decode import Listing
from fedbm.data.split import SPLITS, check_usable
from fedbm.errors import FedBMError
from fedbm.files import digest_of

LAYOUT = "one folder of JPEG or PNG images per class, directly or inside train, val and test"

_SIDES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
_LITTER = {"thumbs.db", "desktop.ini"}  # left by file browsers


def scan(root: Path) -> Listing:
    """List the samples under *root*: sides, classes and files each in the order of their names."""
    sides = _sides(root)
    found: list[tuple[int, str, Path]] = []
    for side, top in sides:
        for class_folder in _folders(top):
            found += [(side, printable(class_folder.name), path) for path in _visible(class_folder)]
    paths = [path for _, _, path in found]
    if all(path.is_dir() for path in paths):
        raise FedBMError(f"{root} holds no images where they are looked for: it should hold {LAYOUT}")
    classes = tuple(sorted({printable(folder.name) for _, top in sides for folder in _folders(top)}))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[name] for _, name, _ in found], dtype=np.int64)
    split = np.array([side for side, _, _ in found], dtype=np.uint8) if len(sides) > 1 else None
    check_usable(labels, split, classes, str(root))
    ids = [printable(str(path.relative_to(root))) for path in paths]
    stamps = [[name, *_stamp(path)] for name, path in zip(ids, paths, strict=True)]
    return Listing(classes, labels, split, ids, paths.__getitem__, digest_of({"files": stamps}))


def printable(name: str) -> str:
    """One spelling per name: accents composed, bytes that are no UTF-8 written as escapes."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


def _sides(root: Path) -> list[tuple[int, Path]]:
    """The folders that hold class folders: train, val and test, or the root alone."""
    tops = _folders(root)
    if not tops:
        raise FedBMError(f"{root} has no folders in it: it should hold {LAYOUT}")
    named = [(_SIDES[top.name.lower()], top) for top in tops if top.name.lower() in _SIDES]
    if not any(side == 0 for side, _ in named) and len(named) < len(tops):
        return [(0, root)]
    for side, name in enumerate(SPLITS):
        having = [top.name for number, top in named if number == side]
        if len(having) != 1:
            raise FedBMError(
                f"{root} has {' and '.join(having) or 'no folder'} for {name}: it should hold one train, "
                "one val and one test folder, or the class folders directly"
            )
    return sorted(named)


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _visible(path) if entry.is_dir()]


def _visible(path: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise FedBMError(f"cannot list {path}: {error.strerror}") from error
    return [path / name for name in names if not name.startswith(".") and name.lower() not in _LITTER]


def _stamp(path: Path) -> tuple[int, int]:
    """Length and time of change, which move when a file does."""
    try:
        status = path.stat()
    except OSError:  # a broken or circular link: a bad sample, and said to be one when it is decoded
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)
