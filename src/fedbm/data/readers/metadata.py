"""A table about the samples, joined to them by name: lesion, patient, site, … as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import text_array
from fedbm.data.readers.table import Table, read_table
from fedbm.errors import FedBMError

# A sample may be called as in the table, or without its ending, or without the folders it lies in.
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    lambda name: str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name,
    lambda name: PurePosixPath(name).stem,
)


def join_metadata(path: Path, ids: Sequence[str]) -> Mapping[str, NDArray[np.str_]]:
    """The table's columns in the order of *ids*, which one of the columns must name, all of them and each once."""
    table = read_table(path)
    most, best, example = 0, "", ids[0]
    for name, values in table.items():
        for spell in _SPELLINGS:
            row_of = {spell(value): row for row, value in enumerate(values)}
            rows = [row_of.get(spell(sample), -1) for sample in ids]
            if -1 not in rows and len(set(rows)) == len(rows):
                _refuse_doubles(path, name, Counter(map(spell, values)), {spell(sample): sample for sample in ids})
                return _columns(table, name, rows)
            found = len(set(rows) - {-1})
            if found > most and -1 in rows:
                most, best, example = found, name, ids[rows.index(-1)]
    if not best:
        raise FedBMError(f'no column of {path} names the samples: one must hold names such as "{ids[0]}"')
    raise FedBMError(
        f'the column {best} of {path} names {most} of the {len(ids)} samples, "{example}" is not in it: add the rest'
    )


def _refuse_doubles(path: Path, column: str, times: Counter[str], ids: Mapping[str, str]) -> None:
    for spelt, sample in ids.items():
        if times[spelt] > 1:
            raise FedBMError(
                f'the column {column} of {path} names "{sample}" in {times[spelt]} rows: leave the one that holds'
            )


def _columns(table: Table, key: str, rows: Sequence[int]) -> dict[str, NDArray[np.str_]]:
    return {name: text_array([values[row] for row in rows]) for name, values in table.items() if name != key}
