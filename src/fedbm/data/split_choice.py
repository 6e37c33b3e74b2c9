"""Which split is used: the source's own, one grouped by a column, or one by class alone; and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import Listing
from fedbm.data.splits import check_usable, grouped, shared_groups, stratified
from fedbm.errors import FedBMError, did_you_mean, join_words

Split = Literal["auto", "official", "stratified", "grouped"]

# Pictures of one of these are alike, so they belong on one side; also as PatientID, "Patient ID", patient-id and so on.
_TOGETHER = ("patient", "subject", "lesion", "writer", "user")


def check_choice(split: str, group: str | None) -> None:
    if split not in get_args(Split):
        raise FedBMError(
            f'split is "{split}", it can be {join_words(get_args(Split))}{did_you_mean(split, get_args(Split))}'
        )
    if group and split in ("official", "stratified"):
        raise FedBMError(f'group = "{group}" has no meaning with split = "{split}": say split = "grouped"')


def decide(
    listing: Listing, split: Split, group: str | None, seed: int, name: str
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """The split of *listing* and what the user should be told of it.

    auto: grouped where the user names a group; else the source's own where it brings one; else grouped where a column
    is known to belong together; else stratified.
    """
    column = group or known_group(listing.columns)
    if split == "official" and listing.split is None:
        raise FedBMError(f'{name} brings no split of its own: say split = "auto", "stratified" or "grouped"')
    if listing.split is not None and (split == "official" or (split == "auto" and not group)):
        check_usable(listing.labels, listing.split, listing.classes, name)
        return listing.split, _shared(listing, listing.split, column, name)
    check_usable(listing.labels, None, listing.classes, name)
    if split == "stratified" or (split == "auto" and not column):
        made = stratified(listing.labels, seed=seed)
        why = "brings no split" if listing.split is None else "is split anew"
        return made, (f"{name} {why}: each class was cut 7:1:2 with seed {seed}", *_shared(listing, made, column, name))
    groups = _groups(listing, column, name)
    made = grouped(listing.labels, groups, listing.classes, column=column, seed=seed)
    return made, (
        f"{name} is split 7:1:2 with seed {seed} so that none of its {len(np.unique(groups))} values of {column} "
        "is on two sides",
    )


def known_group(columns: Sequence[str] | Mapping[str, object]) -> str:
    """The column whose samples belong together, if its name says so."""
    return next(iter(known_groups(columns)), "")


def known_groups(columns: Sequence[str] | Mapping[str, object]) -> list[str]:
    """All such columns, the widest group first."""
    plain = {re.sub(r"[\s_-]", "", name.lower()).removesuffix("id"): name for name in columns}
    return [plain[word] for word in _TOGETHER if word in plain]


def _groups(listing: Listing, column: str, name: str) -> NDArray[np.str_]:
    if not column or column not in listing.columns:
        has = (
            f"its columns are {', '.join(listing.columns)}"
            if listing.columns
            else "it has no columns, metadata = FILE adds some"
        )
        what = f'has no column "{column}"{did_you_mean(column, listing.columns)}' if column else "needs group = COLUMN"
        raise FedBMError(f"to be split by group {name} {what}: {has}")
    values = listing.columns[column]
    empty = np.flatnonzero(values == "")
    if len(empty):
        raise FedBMError(
            f"{len(empty)} samples of {name} have no {column}, the first is {listing.ids[empty[0]]}: "
            'fill the column in, or say split = "stratified"'
        )
    return values


def _shared(listing: Listing, split: NDArray[np.uint8], column: str, name: str) -> tuple[str, ...]:
    if not column or column not in listing.columns:
        return ()
    known = listing.columns[column] != ""
    shared = shared_groups(split[known], listing.columns[column][known])
    if not shared:
        return ()
    count = len(np.unique(listing.columns[column][known]))
    return (
        f"{len(shared)} of the {count} values of {column} are on more than one side of the split of {name}, "
        'so scores may be too good: split = "grouped" keeps them together',
    )
