"""The sources of images: the values of the column that partitions the training images among clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.data.partition import Partition

MAX_SOURCES = 20  # clinics or scanners; hundreds of writers are not scored one by one


class Sources(NamedTuple):
    """The names of the sources, and the number of each image's source."""

    names: tuple[str, ...]
    numbers: NDArray[np.int64]


def find_sources(dataset: Dataset, partition: Partition, subset: str) -> Sources | None:
    """Return the sources of a subset's images without held-out clients, in the order of the clients.

    A source without training images comes last. Images with an empty value have the source "without <column>".

    Args:
        dataset: the data set.
        partition: its partition among clients.
        subset: "train", "val" or "test".

    Returns:
        None if the clients are not the values of a column, or if there are more than MAX_SOURCES.
    """
    column = str(partition.settings.get("column", ""))
    if partition.kind != "column" or column not in dataset.columns:
        return None
    values = dataset.columns[column][partition.scored_samples(dataset, subset)].tolist()
    clients = [str(value) for value in partition.settings.get("values", ())]
    known = [value for value in dict.fromkeys([*clients, *sorted(set(values))]) if value in set(values)]
    if len(known) > MAX_SOURCES:
        return None
    place = {value: number for number, value in enumerate(known)}
    names = tuple(value or f"without {column}" for value in known)
    return Sources(names, np.array([place[value] for value in values], dtype=np.int64))
