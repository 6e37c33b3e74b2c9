"""Who trains, who validates, who tests: 0, 1 and 2 in every split array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbm.errors import FedBMError
from fedbm.utils.seeds import numpy_rng

SPLITS = ("train", "val", "test")
SIDES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}  # as folders and tables spell them
FRACTIONS = (0.7, 0.1, 0.2)
TIE = 1e-6  # so little that it decides between equals only


def allocate_counts(count: int, target: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
    """*count* ≥ 3 in whole parts nearest to *target* (7:1:2 of it unless given), none empty."""
    if target is None:
        target = count * np.asarray(FRACTIONS)
    taken = np.ones(len(SPLITS), dtype=np.int64)
    for _ in range(count - len(SPLITS)):
        taken[np.argmax(target - taken)] += 1
    return taken


def split_stratified(labels: NDArray[np.int64], *, seed: int) -> NDArray[np.uint8]:
    """Each class cut 7:1:2, at least one sample of it on every side.

    A class's quotas n_k·f are rounded to whole samples that add up to n_k, and what rounding took from one
    side is owed to it by the next class: so the totals are right too, however many small classes there are.
    """
    rng = numpy_rng(seed, "split")
    split = np.empty(len(labels), dtype=np.uint8)
    owed = np.zeros(len(SPLITS))
    for label, count in enumerate(np.bincount(labels)):
        if count < len(SPLITS):
            raise FedBMError(
                f"class number {label} has {count} samples, to be split into train, val and test it needs at least 3"
            )
        target = count * np.asarray(FRACTIONS) + owed
        taken = allocate_counts(count, target)
        # Without the bound, many tiny classes (one sample a side) would starve a large one after them.
        owed = np.clip(target - taken, -1.0, 1.0)
        members = rng.permutation(np.flatnonzero(labels == label))
        split[members] = np.repeat(np.arange(len(SPLITS)), taken)
    return split


def split_grouped(
    labels: NDArray[np.int64], groups: NDArray[np.str_], classes: Sequence[str], *, column: str, seed: int
) -> NDArray[np.uint8]:
    """No group on two sides, every class on every side, and each class near 7:1:2.

    First, classes with the fewest groups first, each side that lacks a class takes the smallest group that has it.
    Then every other group, large ones first, goes to the side that still misses most of what the group holds:
    the largest Σ_k c_gk·(f_s·n_k − held_sk)/n_k, where c_gk counts class k in group g; of equal ones the side that
    misses most of all classes together. The seed decides between groups that are alike.
    """
    names, group_of = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), len(classes)), dtype=np.int64)
    np.add.at(counts, (group_of, labels), 1)
    order = numpy_rng(seed, "split", "groups").permutation(len(names))
    order = order[np.argsort(counts[order].sum(axis=1), kind="stable")]  # small ones first, ties by the seed
    side_of = np.full(len(names), -1)
    held = np.zeros((len(SPLITS), len(classes)), dtype=np.int64)

    def give(side: int, group: int) -> None:
        side_of[group] = side
        held[side] += counts[group]

    having = (counts > 0).sum(axis=0)
    for label in np.argsort(having, kind="stable"):
        for side in (1, 2, 0):
            if held[side, label]:
                continue
            free = [group for group in order if counts[group, label] and side_of[group] < 0]
            if not free:
                raise FedBMError(
                    f'the images of class "{classes[label]}" come from {having[label]} values of {column}, too few to '
                    f'put some into each of train, val and test with no {column} in two: say split = "stratified", '
                    "or leave the class out"
                )
            give(side, free[0])
    quota = np.asarray(FRACTIONS)[:, None]
    sizes = counts.sum(axis=0)
    for group in order[::-1]:
        if side_of[group] < 0:
            missing = (quota - held / sizes) @ counts[group]
            overall = (quota - held.sum(axis=1, keepdims=True) / len(labels))[:, 0]
            give(int(np.argmax(missing + TIE * overall)), group)
    return side_of[group_of].astype(np.uint8)


def find_shared_groups(split: NDArray[np.uint8], groups: NDArray[np.str_]) -> list[str]:
    """The groups that are on more than one side: what a score on val or test has partly seen in training."""
    names, group_of = np.unique(groups, return_inverse=True)
    present = np.zeros((len(names), len(SPLITS)), dtype=bool)
    present[group_of, split] = True
    return [str(name) for name in names[present.sum(axis=1) > 1]]


def check_usable(
    labels: NDArray[np.int64], split: NDArray[np.uint8] | None, classes: Sequence[str], where: str
) -> None:
    """Refuse what cannot be learnt or scored: it takes two classes, all in training, and no empty side.

    Data that is still to be split (None) needs three samples of each class instead.
    """
    if len(classes) < 2:
        raise FedBMError(f"{where} holds {len(classes)} class ({', '.join(classes)}), learning needs at least 2")
    if split is None:
        for name, count in zip(classes, np.bincount(labels, minlength=len(classes)), strict=True):
            if count < len(SPLITS):
                raise FedBMError(
                    f'class "{name}" of {where} has {count} {"image" if count == 1 else "images"}, '
                    "to be split into train, val and test it needs at least 3"
                )
        return
    trained = np.bincount(labels[split == 0], minlength=len(classes))
    if not trained.all():
        name = classes[int(np.argmin(trained))]
        raise FedBMError(
            f'{where} has no training image of class "{name}": add some or take the class out of val and test'
        )
    for side, name in enumerate(SPLITS):
        if not (split == side).any():
            raise FedBMError(f"{where} has no {name} images, each of train, val and test needs at least one")
