"""Draw the writers that take part: 50 of all, of which 35 train, 5 validate and 10 test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedbm.data.splits import SPLITS, allocate_counts
from fedbm.utils.seeds import numpy_rng

MAX_WRITERS = 50
MAX_DRAWS = 100


def draw_writers(
    labels: Mapping[str, NDArray[np.int64]], classes: int, seed: int
) -> tuple[list[str], NDArray[np.uint8]]:
    """Return writers drawn from *labels* (writer → labels of their samples), and the subset of each.

    The first draw is used in which the training writers have written every class, if there is one.
    """
    for attempt in range(MAX_DRAWS):
        drawn = numpy_rng(seed, "writers", attempt).permutation(sorted(labels))[:MAX_WRITERS].tolist()
        subsets = np.repeat(np.arange(len(SPLITS), dtype=np.uint8), allocate_counts(len(drawn)))
        training = [labels[writer] for writer, subset in zip(drawn, subsets, strict=True) if subset == 0]
        if len(np.unique(np.concatenate(training))) == classes:
            break
    return drawn, subsets


def describe_draw(subsets: NDArray[np.uint8], source: str, seed: int) -> str:
    train, val, test = np.bincount(subsets)
    return (
        f"{len(subsets)} of the {source} were drawn with seed {seed}: {train} for train, {val} for val, {test} for test"
    )
