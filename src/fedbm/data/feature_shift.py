"""Feature shift: the images of each client are changed by a fixed amount l·s, with its level l and the strength s.

    brightness:  x + 255·s·l                    l from −1 to 1
    contrast:    x̄ + (x − x̄)·(1 + s·l)          l from −1 to 1, x̄ is the mean of the image
    blur:        Gaussian, σ = s·l·side/8       l from 0 to 1
    noise:       x + 255·s·l·ε, ε ~ N(0, 1)     l from 0 to 1; drawn once for each image

Levels are evenly spaced and given to the clients in random order. Val and test images belong to no client and are not
changed. If the clients are the values of a column, val and test images change like the training images of their value.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.data.partition import SHIFTS, Partition, Shift, column_of
from fedbm.errors import FedBMError, join_words
from fedbm.utils.seeds import numpy_rng


def shift_features(partition: Partition, kind: str, strength: float = 0.2, seed: int = 0) -> Partition:
    """Return the partition with a change of the images that differs from client to client.

    Args:
        partition: what a partitioner such as `fedbm.dirichlet()` returned. Held-out clients have a shift, too.
        kind: "brightness", "contrast", "blur" or "noise".
        strength: the largest change, above 0 and up to 1.
        seed: seed of the order of the levels, and of the noise.

    Returns:
        The partition with a level for each client.

    Raises:
        FedBMError: if an argument is invalid or the partition has a shift already.

    Example:
        >>> import fedbm, numpy
        >>> parts = fedbm.iid(numpy.arange(60), clients=3, seed=0)
        >>> fedbm.shift_features(parts, "blur").shift.levels
        (0.5, 0.0, 1.0)
    """
    if kind not in SHIFTS:
        raise FedBMError(f'the kind of feature shift is "{kind}", but it must be {join_words(SHIFTS)}')
    if not 0 < strength <= 1:
        raise FedBMError(f"the strength of a feature shift is {strength}, but it must be above 0 and at most 1")
    if partition.shift is not None:
        raise FedBMError(f"the partition has a {partition.shift.kind} shift already. Remove one of the two.")
    lowest = -1.0 if kind in ("brightness", "contrast") else 0.0
    spaced = np.linspace(lowest, 1.0, len(partition.clients) + len(partition.held_out))
    levels = numpy_rng(seed, "shift").permutation(spaced)
    return dataclasses.replace(partition, shift=Shift(kind, strength, seed, tuple(levels.tolist())))


def shift_images(dataset: Dataset, partition: Partition) -> NDArray[np.uint8]:
    """Return the images of the data set, each changed as the shift of its client requires."""
    if partition.shift is None:
        return dataset.images
    changed = np.array(dataset.images)
    owners = [*partition.clients, *partition.held_out]
    if (column := column_of(dataset, partition)) is not None:  # val and test images, too
        values = (*partition.settings.get("values", ()), *partition.held_out_names)
        owners = [np.flatnonzero(dataset.columns[column] == value) for value in values]
    for client, (samples, level) in enumerate(zip(owners, partition.shift.levels, strict=True)):
        amount, rng = partition.shift.strength * level, numpy_rng(partition.shift.seed, "shift", "noise", client)
        for sample in samples if amount else ():
            changed[sample] = change(dataset.images[sample], partition.shift.kind, amount, rng)
    return changed


def change(image: NDArray[np.uint8], kind: str, amount: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return one image [H,W,C] changed by *amount*, the strength times the level."""
    from scipy.ndimage import gaussian_filter

    x = image.astype(np.float64)
    if kind == "brightness":
        x += 255 * amount
    elif kind == "contrast":
        x = x.mean() + (x - x.mean()) * (1 + amount)
    elif kind == "blur":
        sigma = amount * len(image) / 8
        x = gaussian_filter(x, (sigma, sigma, 0))
    else:
        x += 255 * amount * rng.standard_normal(x.shape)
    return np.rint(x).clip(0, 255).astype(np.uint8)
