"""Read an .npz file of pixels: images [n, H, W] or [n, H, W, 3], labels and classes.

Every further array of n texts or whole numbers is a column: writer, site, patient, …
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedbm.data.readers.npz import Npz, identity, is_integers, is_texts, read_fields, usable_size
from fedbm.data.readers.sample_index import Encoded, SampleIndex, Source, text_array

LAYOUT = (
    "images (n of equal size, grey or RGB, uint8), labels (n), classes (names in label order), and optionally split "
    "(n: 0 train, 1 val, 2 test), ids (n names) and columns such as writer or site (n values each)"
)

KEYS = frozenset(("images", "labels", "classes"))


def find(path: Path) -> Source:
    return Source(identity(path), lambda: scan(path))


def scan(path: Path) -> SampleIndex:
    file = Npz(path, LAYOUT)
    shape, dtype = file.shape_and_type("images")
    colour = len(shape) == 4 and shape[3] == 3
    file.require(dtype == np.uint8 and (len(shape) == 3 or colour) and all(shape), f"images are {dtype} {shape}")
    count, height, width = shape[:3]
    arrays = file.arrays(sorted(file.keys() - {"images"}))
    columns = {name: values for name, values in arrays.items() if name not in ("labels", "classes", "split", "ids")}
    for name, values in columns.items():
        valid = (is_integers(values) or is_texts(values)) and len(values) == count
        file.require(valid, f"{name} must have one text or whole number for each of the {count} images")

    def stream() -> Iterator[tuple[int, Encoded]]:
        return enumerate(file.rows("images"))

    return SampleIndex(
        *read_fields(file, arrays, count),
        stream,
        columns={name: text_array(values.tolist()) for name, values in columns.items()},
        size=usable_size(height, width),
        channels=3 if colour else 1,
    )
