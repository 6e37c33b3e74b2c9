"""Chars74K's handwritten characters: 62 classes by 55 writers, in an .npz of images, labels, classes and writer.

It stands in for FEMNIST where that is not at hand, so its writers take part as FEMNIST's do in the paper.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.readers import npz_arrays as arrays
from fedbm.data.readers.femnist_writers import draw_writers
from fedbm.data.readers.npz import identity
from fedbm.data.readers.sample_index import SampleIndex, Source

NAME = "chars74k"


def is_it(path: Path, held: set[str]) -> bool:
    """Its file says so by its name, as MedMNIST's do, and tells the writers."""
    return path.stem.lower().partition("_")[0] == NAME and "writer" in held


def find(path: Path, seed: int) -> Source:
    return Source(identity(path, NAME, str(seed)), lambda: scan(path, seed))


def scan(path: Path, seed: int) -> SampleIndex:
    found = arrays.scan(path)
    if found.classes != tuple(CATALOG[NAME].classes):
        return found
    writers = found.columns["writer"]
    drawn, sides = draw_writers(
        {w: found.labels[writers == w] for w in np.unique(writers).tolist()}, len(found.classes), seed
    )
    side_of = dict(zip(drawn, sides.tolist(), strict=True))
    kept = found.only(np.flatnonzero(np.isin(writers, drawn)))
    train, val, test = np.bincount(sides)
    return replace(
        kept,
        split=np.array([side_of[w] for w in kept.columns["writer"]], dtype=np.uint8),
        known_as=NAME,
        notes=(
            f"{len(drawn)} of the {len(np.unique(writers))} writers, drawn with seed {seed}: "
            f"{train} train, {val} validate, {test} test",
        ),
    )
