"""Who trains, who validates, who tests: 0, 1 and 2 in every split array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbm.errors import FedBMError
from fedbm.seeds import numpy_rng

SPLITS = ("train", "val", "test")
FRACTIONS = (0.7, 0.1, 0.2)


def stratified(
    labels: NDArray[np.int64], fractions: tuple[float, float, float] = FRACTIONS, *, seed: int
) -> NDArray[np.uint8]:
    """Each class cut in the proportions *fractions*, at least one sample of it on every side.

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
        target = count * np.asarray(fractions) + owed
        taken = np.ones(len(SPLITS), dtype=np.int64)
        for _ in range(count - len(SPLITS)):
            taken[np.argmax(target - taken)] += 1
        # Without the bound, many tiny classes (one sample a side) would starve a large one after them.
        owed = np.clip(target - taken, -1.0, 1.0)
        members = rng.permutation(np.flatnonzero(labels == label))
        split[members] = np.repeat(np.arange(len(SPLITS)), taken)
    return split


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
                    f'class "{name}" of {where} has {count} images, '
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
