"""MedMNIST's .npz files: 2-D images of any size, grey or colour, one label each, with the published split.

The files hold no class names; the catalogue has them, found by the file's name: bloodmnist.npz, bloodmnist_128.npz.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.readers.npz import Npz, identity, usable_size
from fedbm.data.readers.sample_index import Encoded, SampleIndex, Source
from fedbm.data.splits import SPLITS, check_usable
from fedbm.errors import FedBMError

LAYOUT = "train_images, train_labels, val_images, val_labels, test_images and test_labels, as MedMNIST's files do"


def find(path: Path) -> Source:
    name = path.stem.lower().split("_")[0]  # what follows is the size
    return Source(identity(path, "MedMNIST", name), lambda: scan(path, name))


def scan(path: Path, name: str) -> SampleIndex:
    file = Npz(path, LAYOUT)
    present = file.keys()
    wanted = [f"{side}_{what}" for side in SPLITS for what in ("images", "labels")]
    if missing := [key for key in wanted if key not in present]:
        raise FedBMError(f"{path} has no {' and no '.join(missing)}; it must hold {LAYOUT}")
    held = file.arrays([f"{side}_labels" for side in SPLITS])
    per_side = [_labels(file, side, held[f"{side}_labels"]) for side in SPLITS]
    shapes = {_image_shape(file, side, len(part)) for side, part in zip(SPLITS, per_side, strict=True)}
    file.require(len(shapes) == 1, "the images of train, val and test are not of one size")
    labels = np.concatenate(per_side)
    split = np.repeat(np.arange(len(SPLITS), dtype=np.uint8), [len(part) for part in per_side])
    entry = CATALOG.get(name)
    classes = tuple(entry.classes) if entry else tuple(map(str, range(int(labels.max(initial=0)) + 1)))
    if labels.max(initial=0) >= len(classes):
        raise FedBMError(
            f"{path} has an image with label {labels.max()}, the labels of {name} end with {len(classes) - 1}"
        )
    check_usable(labels, split, classes, str(path))

    def stream() -> Iterator[tuple[int, Encoded]]:
        return enumerate(image for side in SPLITS for image in file.rows(f"{side}_images"))

    height, width, *colours = shapes.pop()
    return SampleIndex(
        classes=classes,
        labels=labels,
        split=split,
        ids=[f"{side} {i}" for side, part in zip(SPLITS, per_side, strict=True) for i in range(len(part))],
        stream=stream,
        known_as=name,
        size=usable_size(height, width),
        channels=3 if colours else 1,
        notes=() if entry else (f'MedMNIST has no set of one label called "{name}": classes go by their numbers',),
    )


def _image_shape(file: Npz, side: str, count: int) -> tuple[int, ...]:
    shape, dtype = file.shape_and_type(f"{side}_images")
    if len(shape) == 5 or (len(shape) == 4 and shape[3] != 3):
        raise FedBMError(f"{file.path} holds 3-D images ({'×'.join(map(str, shape[1:]))}), only 2-D ones can be used")
    holds = len(shape) in (3, 4) and dtype == np.uint8 and shape[0] == count and all(shape[1:])
    file.require(holds, f"{side}_images are {dtype} {shape}, not {count} uint8 images")
    return shape[1:]


def _labels(file: Npz, side: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise FedBMError(
            f"{file.path} gives each image {labels.shape[1]} labels, only sets with one label for each can be used"
        )
    holds = np.issubdtype(labels.dtype, np.integer) and labels.ndim in (1, 2) and not (labels < 0).any()
    file.require(bool(holds), f"{side}_labels are not whole numbers from 0 up")
    return labels.reshape(-1).astype(np.int64)
