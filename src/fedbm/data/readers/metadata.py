"""Join a table about the samples to them by name, for columns such as lesion, patient or site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import text_array
from fedbm.data.readers.table import Table, read_table
from fedbm.errors import FedBMError

# Names are compared as they are, without file ending, or without file ending and folders.
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    lambda name: str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name,
    lambda name: PurePosixPath(name).stem,
)


def join_metadata(path: Path, ids: Sequence[str]) -> Mapping[str, NDArray[np.str_]]:
    """Return the table's columns in the order of *ids*. One column must contain all ids, each exactly once."""
    table = read_table(path)
    most, best, example = 0, "", ids[0]
    for name, values in table.items():
        for spell in _SPELLINGS:
            row_of = {spell(value): row for row, value in enumerate(values)}
            rows = [row_of.get(spell(sample), -1) for sample in ids]
            if -1 not in rows and len(set(rows)) == len(rows):
                _check_unique(path, name, Counter(map(spell, values)), {spell(sample): sample for sample in ids})
                return _columns(table, name, rows)
            found = len(set(rows) - {-1})
            if found > most and -1 in rows:
                most, best, example = found, name, ids[rows.index(-1)]
    if not best:
        raise FedBMError(f'no column of {path} contains the names of the samples, such as "{ids[0]}": add one')
    raise FedBMError(
        f'the column {best} of {path} contains {most} of the {len(ids)} samples, but not "{example}": add the rest'
    )


def _check_unique(path: Path, column: str, times: Counter[str], ids: Mapping[str, str]) -> None:
    for spelt, sample in ids.items():
        if times[spelt] > 1:
            raise FedBMError(
                f'the column {column} of {path} contains "{sample}" in {times[spelt]} rows: keep one of them'
            )


def _columns(table: Table, key: str, rows: Sequence[int]) -> dict[str, NDArray[np.str_]]:
    return {name: text_array([values[row] for row in rows]) for name, values in table.items() if name != key}
