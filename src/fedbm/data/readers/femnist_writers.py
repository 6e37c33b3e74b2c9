"""Who takes part, and on which side: of all writers 50 are drawn, and 35 of them train, 5 validate, 10 test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedbm.data.splits import SPLITS, allocate_counts
from fedbm.utils.seeds import numpy_rng

DRAWN = 50
DRAWS = 100


def draw_writers(
    labels: Mapping[str, NDArray[np.int64]], classes: int, seed: int
) -> tuple[list[str], NDArray[np.uint8]]:
    """The writers drawn from *labels* (writer → what they wrote), and the side of each.

    It is the first draw whose training writers have written every class, if any has.
    """
    for attempt in range(DRAWS):
        drawn = numpy_rng(seed, "writers", attempt).permutation(sorted(labels))[:DRAWN].tolist()
        sides = np.repeat(np.arange(len(SPLITS), dtype=np.uint8), allocate_counts(len(drawn)))
        training = [labels[writer] for writer, side in zip(drawn, sides, strict=True) if side == 0]
        if len(np.unique(np.concatenate(training))) == classes:
            break
    return drawn, sides
