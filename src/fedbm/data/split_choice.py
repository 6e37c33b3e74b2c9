"""Which split is used: the source's own, one grouped by a column, or one by class alone; and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import SampleIndex
from fedbm.data.splits import check_usable, find_shared_groups, split_grouped, split_stratified
from fedbm.errors import FedBMError, did_you_mean, join_words

Split = Literal["auto", "official", "stratified", "grouped"]

# Pictures of one of these are alike, so they belong on one side; also as PatientID, "Patient ID", patient-id and so on.
_TOGETHER = ("patient", "subject", "lesion", "writer", "user")


def check_split_option(split: str, group: str | None) -> None:
    if split not in get_args(Split):
        raise FedBMError(
            f'split is "{split}", it can be {join_words(get_args(Split))}{did_you_mean(split, get_args(Split))}'
        )
    if group and split in ("official", "stratified"):
        raise FedBMError(f'group = "{group}" has no meaning with split = "{split}": say split = "grouped"')


def choose_split(
    index: SampleIndex, split: Split, group: str | None, seed: int, name: str
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """The split of *index* and what the user should be told of it.

    auto: grouped where the user names a group; else the source's own where it brings one; else grouped where a column
    is known to belong together; else stratified.
    """
    column = group or find_group_column(index.columns)
    if split == "official" and index.split is None:
        raise FedBMError(f'{name} brings no split of its own: say split = "auto", "stratified" or "grouped"')
    if index.split is not None and (split == "official" or (split == "auto" and not group)):
        check_usable(index.labels, index.split, index.classes, name)
        return index.split, _shared(index, index.split, column, name)
    check_usable(index.labels, None, index.classes, name)
    if split == "stratified" or (split == "auto" and not column):
        made = split_stratified(index.labels, seed=seed)
        why = "brings no split" if index.split is None else "is split anew"
        return made, (f"{name} {why}: each class was cut 7:1:2 with seed {seed}", *_shared(index, made, column, name))
    groups = _groups(index, column, name)
    made = split_grouped(index.labels, groups, index.classes, column=column, seed=seed)
    return made, (
        f"{name} is split 7:1:2 with seed {seed} so that none of its {len(np.unique(groups))} values of {column} "
        "is on two sides",
    )


def find_group_column(columns: Sequence[str] | Mapping[str, object]) -> str:
    """The column whose samples belong together, if its name says so."""
    return next(iter(find_group_columns(columns)), "")


def find_group_columns(columns: Sequence[str] | Mapping[str, object]) -> list[str]:
    """All such columns, the widest group first."""
    plain = {re.sub(r"[\s_-]", "", name.lower()).removesuffix("id"): name for name in columns}
    return [plain[word] for word in _TOGETHER if word in plain]


def _groups(index: SampleIndex, column: str, name: str) -> NDArray[np.str_]:
    if not column or column not in index.columns:
        has = (
            f"its columns are {', '.join(index.columns)}"
            if index.columns
            else "it has no columns, metadata = FILE adds some"
        )
        what = f'has no column "{column}"{did_you_mean(column, index.columns)}' if column else "needs group = COLUMN"
        raise FedBMError(f"to be split by group {name} {what}: {has}")
    values = index.columns[column]
    empty = np.flatnonzero(values == "")
    if len(empty):
        raise FedBMError(
            f"{len(empty)} samples of {name} have no {column}, the first is {index.ids[empty[0]]}: "
            'fill the column in, or say split = "stratified"'
        )
    return values


def _shared(index: SampleIndex, split: NDArray[np.uint8], column: str, name: str) -> tuple[str, ...]:
    if not column or column not in index.columns:
        return ()
    known = index.columns[column] != ""
    shared = find_shared_groups(split[known], index.columns[column][known])
    if not shared:
        return ()
    count = len(np.unique(index.columns[column][known]))
    return (
        f"{len(shared)} of the {count} values of {column} are on more than one side of the split of {name}, "
        'so scores may be too good: split = "grouped" keeps them together',
    )
