"""Make each value of a column, such as site, a client; and find the value of each scored image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.data.partition import Ints, Partition
from fedbm.data.readers.sample_index import encode_labels
from fedbm.errors import FedBMError, did_you_mean

MAX_SOURCES = 20  # clinics or scanners; hundreds of writers are not scored one by one


def by_column(
    data: Dataset | Mapping[str, NDArray[np.str_]],
    train: Ints | None = None,
    column: str = "site",
    min_samples: int = 2,
    held_out: Sequence[str] = (),
) -> Partition:
    """Make each value of a column a client, in the order of the values.

    Args:
        data: the data set, or its columns.
        train: sample numbers to divide; by default the training samples, or all if *data* are columns.
        column: name of the column.
        min_samples: least number of samples of a client. A value with fewer samples raises an error.
        held_out: values that never train. All their samples, also of val and test, are only scored at the end.

    Returns:
        The partition.

    Raises:
        FedBMError: if the column is missing, empty for a sample, or has a value with too few samples.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.by_column({"site": numpy.array(["Bern", "Oslo"] * 30)}, column="site")
        Partition(column: 2 clients with 30 samples)
    """
    columns = data.columns if isinstance(data, Dataset) else data
    if column not in columns:
        known = f"the columns are {', '.join(columns)}" if columns else "there are none; add one with a metadata table"
        raise FedBMError(f'the data has no column "{column}"{did_you_mean(column, columns)}: {known}')
    if train is None:
        train = data.indices("train") if isinstance(data, Dataset) else np.arange(len(columns[column]))
    held_out = list(dict.fromkeys(held_out))
    for name in held_out:
        if name not in columns[column]:
            near = did_you_mean(name, set(columns[column].tolist()))
            raise FedBMError(f'the column "{column}" has no value "{name}" to hold out{near}')
    own = columns[column][train]
    values = [value for value in encode_labels(own.tolist())[0] if value not in held_out]
    clients = [train[own == value] for value in values]
    if not values:
        raise FedBMError(f'all values of the column "{column}" are held out: keep at least one to train on')
    for value, client in zip(values, clients, strict=True):
        if not value or len(client) < min_samples:
            raise FedBMError(
                f'{column} "{value}" has {len(client)} training samples: a client needs a name and min_samples = '
                f"{min_samples}; fill the column in, lower min_samples, or merge values of {column}"
            )
    settings = {"column": column, "values": values, "min_samples": min_samples}
    return Partition(
        clients,
        "column",
        settings | ({"held_out": held_out} if held_out else {}),
        held_out=[np.flatnonzero(columns[column] == value) for value in held_out],
    )


class Sources(NamedTuple):
    """The values of the column, and the number of each image's value."""

    names: tuple[str, ...]
    numbers: Ints


def find_sources(dataset: Dataset, partition: Partition) -> Sources | None:
    """Return the column's value for each test image, without the images of held-out clients.

    Values are in the order of the clients; a value without training images comes last. Return None if the clients are
    not the values of a column, or if there are more than MAX_SOURCES values.
    """
    if (column := column_of(dataset, partition)) is None:
        return None
    values = dataset.columns[column][partition.scored_samples(dataset, "test")].tolist()
    clients = [str(value) for value in partition.settings.get("values", ())]
    known = [value for value in dict.fromkeys([*clients, *sorted(set(values))]) if value in set(values)]
    if len(known) > MAX_SOURCES:
        return None
    place = {value: number for number, value in enumerate(known)}
    names = tuple(value or f"without {column}" for value in known)
    return Sources(names, np.array([place[value] for value in values], dtype=np.int64))


def column_of(dataset: Dataset, partition: Partition) -> str | None:
    """Return the column that defines the clients; None if another partitioner made them, or the data set lost it."""
    column = str(partition.settings.get("column", ""))
    return column if partition.kind == "column" and column in dataset.columns else None
