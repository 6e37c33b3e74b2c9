"""Read an .npz file with all JPEGs concatenated: image i is jpeg[offsets[i]:offsets[i+1]]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedbm.data.readers.npz import Npz, identity, is_integers, read_fields
from fedbm.data.readers.sample_index import Encoded, SampleIndex, Source
from fedbm.errors import FedBMError

LAYOUT = (
    "jpeg (all JPEGs concatenated, uint8), offsets (n+1 positions in it), labels (n), classes (names in label "
    "order), ids (n names) and optionally split (n: 0 train, 1 val, 2 test)"
)

_KEYS = ("jpeg", "offsets", "labels", "classes", "ids")


def find(path: Path) -> Source:
    return Source(identity(path), lambda: scan(path))


def scan(path: Path) -> SampleIndex:
    file = Npz(path, LAYOUT)
    present = file.keys()
    if missing := [key for key in _KEYS if key not in present]:
        raise FedBMError(f"{path} has no {' and no '.join(missing)}; it must contain {LAYOUT}")
    arrays = file.arrays([key for key in (*_KEYS, "split") if key in present])
    jpeg, offsets = arrays["jpeg"], arrays["offsets"]
    file.require(jpeg.dtype == np.uint8 and jpeg.ndim == 1, "jpeg is not a vector of bytes")
    file.require(is_integers(offsets) and len(offsets) > 1, "offsets are not whole numbers")
    file.require(offsets[0] >= 0 and offsets[-1] <= len(jpeg), "offsets are outside of jpeg")
    file.require(bool((offsets[1:] >= offsets[:-1]).all()), "offsets are not ascending")
    count = len(offsets) - 1

    def stream() -> Iterator[tuple[int, Encoded]]:
        return ((i, jpeg[offsets[i] : offsets[i + 1]].tobytes()) for i in range(count))

    return SampleIndex(*read_fields(file, arrays, count), stream)
