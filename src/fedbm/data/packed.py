"""One .npz with all JPEGs of a data set end to end: image i is jpeg[offsets[i]:offsets[i+1]]."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.decode import Listing
from fedbm.data.split import check_usable
from fedbm.errors import FedBMError
from fedbm.files import sha256_file

LAYOUT = (
    "jpeg (all JPEGs end to end, uint8), offsets (n+1 positions in it), labels (n), classes (names in label "
    "order), ids (n names) and, unless it is to be split, split (n: 0 train, 1 val, 2 test)"
)

_KEYS = ("jpeg", "offsets", "labels", "classes", "ids")


def scan(path: Path) -> Listing:
    arrays = _arrays(path)
    jpeg, offsets, labels = arrays["jpeg"], arrays["offsets"], arrays["labels"]
    classes, ids, split = arrays["classes"], arrays["ids"], arrays.get("split")

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise FedBMError(f"{path} is damaged or not packed JPEGs: {what}; it must hold {LAYOUT}")

    require(jpeg.dtype == np.uint8 and jpeg.ndim == 1, "jpeg is not one row of bytes")
    require(_whole(offsets) and len(offsets) > 1, "offsets are not whole numbers")
    require(offsets[0] >= 0 and offsets[-1] <= len(jpeg), "offsets lie outside jpeg")
    require(bool((offsets[1:] >= offsets[:-1]).all()), "offsets go backwards")
    count = len(offsets) - 1
    require(_texts(classes) and len(set(classes.tolist())) == len(classes), "classes are not distinct names")
    require(_whole(labels) and len(labels) == count, f"labels are not {count} whole numbers")
    require(bool((labels >= 0).all() and (labels < len(classes)).all()), "labels point outside classes")
    require(_texts(ids) and len(ids) == count, f"ids are not {count} names")
    if split is not None:
        require(_whole(split) and len(split) == count, f"split is not {count} whole numbers")
        require(bool(np.isin(split, (0, 1, 2)).all()), "split holds other values than 0, 1 and 2")
        split = split.astype(np.uint8)

    labels, names = labels.astype(np.int64), tuple(classes.tolist())
    check_usable(labels, split, names, str(path))

    def fetch(i: int) -> bytes:
        return jpeg[offsets[i] : offsets[i + 1]].tobytes()

    return Listing(names, labels, split, ids.tolist(), fetch, sha256_file(path))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in _KEYS if key not in file]
            if not missing:
                return {key: file[key] for key in (*_KEYS, "split") if key in file}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise FedBMError(f"cannot read {path}: {error}; it must hold {LAYOUT}") from error
    raise FedBMError(f"{path} has no {' and no '.join(missing)}; it must hold {LAYOUT}")


def _whole(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and np.issubdtype(array.dtype, np.integer)


def _texts(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind == "U"
