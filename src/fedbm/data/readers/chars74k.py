"""Read the handwritten characters of Chars74K: 62 classes by 55 writers, in an .npz file.

It is a substitute for FEMNIST, so its writers are drawn and split like FEMNIST's in the paper.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.readers import npz_arrays
from fedbm.data.readers.femnist_writers import describe_draw, draw_writers
from fedbm.data.readers.npz import identity
from fedbm.data.readers.sample_index import SampleIndex, Source

NAME = "chars74k"


def matches(path: Path, keys: set[str]) -> bool:
    """Return whether the file name says Chars74K and the file contains the writers."""
    return path.stem.lower().partition("_")[0] == NAME and "writer" in keys


def find(path: Path, seed: int) -> Source:
    return Source(identity(path, NAME, str(seed)), lambda: scan(path, seed))


def scan(path: Path, seed: int) -> SampleIndex:
    found = npz_arrays.scan(path)
    if found.classes != tuple(CATALOG[NAME].classes):
        return found
    writers = found.columns["writer"]
    labels_of = {writer: found.labels[writers == writer] for writer in np.unique(writers).tolist()}
    drawn, subsets = draw_writers(labels_of, len(found.classes), seed)
    subset_of = dict(zip(drawn, subsets.tolist(), strict=True))
    kept = found.only(np.flatnonzero(np.isin(writers, drawn)))
    return replace(
        kept,
        split=np.array([subset_of[writer] for writer in kept.columns["writer"]], dtype=np.uint8),
        known_as=NAME,
        notes=(describe_draw(subsets, f"{len(labels_of)} writers", seed),),
    )
