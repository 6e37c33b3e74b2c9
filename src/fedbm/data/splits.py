"""Split samples into train, val and test, which are 0, 1 and 2 in every split array."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import SampleIndex
from fedbm.errors import FedBMError, did_you_mean
from fedbm.utils.seeds import numpy_rng

Split = Literal["auto", "official", "stratified", "grouped"]

SPLITS = ("train", "val", "test")
# as folders and tables spell them
SPLIT_CODES = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "testing": 2}
_CODES = {**SPLIT_CODES, "0": 0, "1": 1, "2": 2}  # as values
FRACTIONS = (0.7, 0.1, 0.2)
VAL_CUT = (0.875, 0.125)  # parts of a source's training samples that become train and val if it has no val
TIE_BREAK_WEIGHT = 1e-6  # small enough to decide only between equals

# Samples with the same value in these columns are similar and must not be separated. A name may also be spelt
# PatientID, "Patient ID", patient-id and so on.
_GROUP_COLUMNS = ("patient", "subject", "lesion", "writer", "user")


def parse_split(values: Sequence[object], where: str, codes: Mapping[str, int] = _CODES) -> NDArray[np.uint8]:
    """Return the numbers of the subsets that a column of *where* contains as words or numbers.

    In a table, *codes* has no numbers, because they may be folds, or 1 for train.
    """
    words = [str(value).lower().removesuffix(".0") for value in values]
    if wrong := [number for number, word in enumerate(words) if word not in codes]:
        word = words[wrong[0]]
        raise FedBMError(
            f'row {wrong[0] + 1} of {where} has the split "{word}"{did_you_mean(word, SPLIT_CODES)}, but it must be '
            f"train, val or test{', or 0, 1 or 2' if '0' in codes else ''}"
        )
    return np.array([codes[word] for word in words], dtype=np.uint8)


def choose_split(
    index: SampleIndex, split: Split, group: str | None, seed: int, name: str
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Return the split of the samples, and notes for the user.

    "auto" chooses the first that applies: grouped if the user gives a group, the source's own split, grouped by a
    column such as patient, stratified.
    """
    column = group or next(iter(find_group_columns(index.columns)), "")
    if split == "auto":
        split = "official" if index.split is not None and not group else "grouped" if column else "stratified"
    if split == "official" and index.split is None:
        raise FedBMError(f'{name} has no split of its own: use split = "auto", "stratified" or "grouped"')
    official = index.split if split == "official" else None
    check_classes(index.labels, official, index.classes, name)
    if split == "grouped":
        chosen = _divide(index, column, FRACTIONS, seed, name)
        count = len(np.unique(index.columns[column]))
        return chosen, (
            f"{name} was split 7:1:2 with seed {seed}; each of the {count} values of {column} is in one subset",
        )
    if official is None:
        chosen = split_stratified(index.labels, seed=seed)
        notes = [f"each class of {name} was split 7:1:2 with seed {seed}"]
    else:
        chosen, notes = official.copy(), []
        if not (chosen == 2).any():
            raise FedBMError(
                f'{name} has no test images: add some, or use split = "stratified" or "grouped", which ignores the '
                "split of the source"
            )
        if not (chosen == 1).any():
            train = np.flatnonzero(chosen == 0)
            own = column if column in index.columns else None
            chosen[train] = _divide(index.select(train), own, VAL_CUT, seed, name)
            count = int((chosen == 1).sum())
            notes = [f"{name} has no val images: {count} of its {len(train)} train images became val, with seed {seed}"]
    values = index.columns.get(column)
    if values is not None and (shared := find_shared_groups(chosen, values)):
        notes.append(
            f"{len(shared)} of the {len(np.unique(values[values != '']))} values of {column} are in more than one of "
            f'train, val and test of {name}, so scores may be too high: split = "grouped" keeps each in one of them'
        )
    return chosen, tuple(notes)


def _divide(
    index: SampleIndex, column: str | None, fractions: Sequence[float], seed: int, name: str
) -> NDArray[np.uint8]:
    """Split the samples by *fractions*, each class separately, or by the groups in a column."""
    if column is None:
        return split_stratified(index.labels, seed=seed, fractions=fractions)
    if column not in index.columns:
        raise FedBMError(
            f'{name} has no column "{column}"{did_you_mean(column, index.columns)} for a grouped split (its columns: '
            f"{', '.join(index.columns)}): set group, or add columns with metadata = FILE"
        )
    groups = index.columns[column]
    empty = np.flatnonzero(groups == "")
    if len(empty):
        raise FedBMError(
            f"{len(empty)} samples of {name} have no {column}, the first is {index.ids[empty[0]]}: "
            'fill in the column, or use split = "stratified"'
        )
    return split_grouped(index.labels, groups, index.classes, column=column, seed=seed, fractions=fractions)


def find_group_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns that name patients, lesions or writers, the one with the largest groups first."""
    plain = {re.sub(r"[\s_-]", "", name.lower()).removesuffix("id"): name for name in columns}
    return [plain[word] for word in _GROUP_COLUMNS if word in plain]


def split_stratified(
    labels: NDArray[np.int64], *, seed: int, fractions: Sequence[float] = FRACTIONS
) -> NDArray[np.uint8]:
    """Split each class 7:1:2, or by other *fractions*, with at least one sample of it in every subset if it has enough.

    The quotas of a class are rounded to whole samples. The rounding error of each subset is carried over to the next
    class, so that the totals are right, even with many small classes.
    """
    rng = numpy_rng(seed, "split")
    split = np.empty(len(labels), dtype=np.uint8)
    carried = np.zeros(len(fractions))
    for label, count in enumerate(np.bincount(labels)):
        target = count * np.asarray(fractions) + carried
        taken = allocate_counts(count, target)
        # Without the bound, many tiny classes (one sample per subset) would starve a large class after them.
        carried = np.clip(target - taken, -1.0, 1.0)
        members = rng.permutation(np.flatnonzero(labels == label))
        split[members] = np.repeat(np.arange(len(fractions)), taken)
    return split


def allocate_counts(count: int, target: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
    """Divide *count* into whole parts near *target* (7:1:2 by default). The first parts are the last to be empty."""
    if target is None:
        target = count * np.asarray(FRACTIONS)
    taken = (np.arange(len(target)) < count).astype(np.int64)
    for _ in range(count - len(target)):
        taken[np.argmax(target - taken)] += 1
    return taken


def split_grouped(
    labels: NDArray[np.int64],
    groups: NDArray[np.str_],
    classes: Sequence[str],
    *,
    column: str,
    seed: int,
    fractions: Sequence[float] = FRACTIONS,
) -> NDArray[np.uint8]:
    """Split so that no group is in two subsets, every class is in every subset, and each class is near *fractions*.

    First, starting with the class that has the fewest groups, each subset without the class receives the smallest group
    that contains it. Then every other group, large ones first, goes to the subset s with the smallest
    Σ_k c_gk·(assigned_sk + c_gk/2)/(f_s·n_k), where c_gk counts class k in group g. This is Sainte-Laguë's rule: it
    divides groups of every size near 7:1:2, so that large groups do not gather in training. Ties go to the subset that
    needs most samples in total. The seed decides between equal groups.
    """
    names, group_of = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), len(classes)), dtype=np.int64)
    np.add.at(counts, (group_of, labels), 1)
    order = numpy_rng(seed, "split", "groups").permutation(len(names))
    order = order[np.argsort(counts[order].sum(axis=1), kind="stable")]  # small groups first, ties by the seed
    subset_of = np.full(len(names), -1)
    assigned = np.zeros((len(fractions), len(classes)), dtype=np.int64)

    def assign(subset: int, group: int) -> None:
        subset_of[group] = subset
        assigned[subset] += counts[group]

    groups_with = (counts > 0).sum(axis=0)
    for label in np.argsort(groups_with, kind="stable"):
        for subset in (*range(1, len(fractions)), 0):
            if assigned[subset, label]:
                continue
            free = [group for group in order if counts[group, label] and subset_of[group] < 0]
            if not free:
                raise FedBMError(
                    f'class "{classes[label]}" has images of only {groups_with[label]} different values of '
                    f'{column}, but each of {len(fractions)} subsets needs one: add images, use split = "stratified", '
                    "or remove the class"
                )
            assign(subset, free[0])
    quota = np.asarray(fractions)[:, None]
    sizes = counts.sum(axis=0)
    for group in order[::-1]:
        if subset_of[group] < 0:
            filled = ((assigned + counts[group] / 2) / (quota * sizes)) @ counts[group]
            overall = (quota - assigned.sum(axis=1, keepdims=True) / len(labels))[:, 0]
            assign(int(np.argmin(filled - TIE_BREAK_WEIGHT * overall)), group)
    return subset_of[group_of].astype(np.uint8)


def find_shared_groups(split: NDArray[np.uint8], groups: NDArray[np.str_]) -> list[str]:
    """Return the groups that are in more than one subset. Samples without a group ('') do not count."""
    names, group_of = np.unique(groups, return_inverse=True)
    present = np.zeros((len(names), len(SPLITS)), dtype=bool)
    present[group_of, split] = True
    return [str(name) for name in names[present.sum(axis=1) > 1] if name]


def check_classes(
    labels: NDArray[np.int64], split: NDArray[np.uint8] | None, classes: Sequence[str], where: str
) -> None:
    """Raise FedBMError if there are fewer than two classes, or a class is not in training.

    Without a split, raise it if a class has fewer than three samples.
    """
    if len(classes) < 2:
        raise FedBMError(f"{where} has {len(classes)} class ({', '.join(classes)}), but at least 2 are needed")
    counts = np.bincount(labels if split is None else labels[split == 0], minlength=len(classes))
    rarest, least = classes[int(counts.argmin())], int(counts.min())
    if split is None and least < len(SPLITS):
        raise FedBMError(
            f'{where} has too few images of class "{rarest}": {least}, but train, val and test need at least 3'
        )
    if least == 0:
        near = did_you_mean(rarest, [name for name, count in zip(classes, counts, strict=True) if count])
        raise FedBMError(
            f'{where} has no training image of class "{rarest}"{near}: add some, or remove the class from val and test'
        )
