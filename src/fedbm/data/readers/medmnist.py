"""Read MedMNIST's .npz files: 2-D images of any size, grey or colour, one label each, with the published split.

The files contain no class names. The catalogue has them, found by the file name: bloodmnist.npz, bloodmnist_128.npz.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.catalog.entries import CATALOG
from fedbm.data.readers.npz import Npz, fingerprint, usable_size
from fedbm.data.readers.sample_index import SampleIndex, Source
from fedbm.data.splits import SPLITS
from fedbm.errors import FedBMError

LAYOUT = "train_images, train_labels, val_images, val_labels, test_images and test_labels, as in MedMNIST's files"


def find(path: Path) -> Source:
    name = path.stem.lower().split("_")[0]  # the size follows
    return Source(fingerprint(path, "MedMNIST", name), lambda: scan(path, name))


def scan(path: Path, name: str) -> SampleIndex:
    file = Npz(path, LAYOUT)
    file.require_arrays([f"{subset}_{kind}" for subset in SPLITS for kind in ("images", "labels")])
    arrays = file.arrays([f"{subset}_labels" for subset in SPLITS])
    parts = {subset: _read_labels(file, subset, arrays[f"{subset}_labels"]) for subset in SPLITS}
    shapes = {_read_image_shape(file, subset, len(part)) for subset, part in parts.items()}
    file.require(len(shapes) == 1, "the images of train, val and test have different sizes")
    height, width, *colours = shapes.pop()
    labels = np.concatenate(list(parts.values()))
    last = int(labels.max(initial=0))
    entry = CATALOG.get(name)
    classes = tuple(entry.classes if entry else map(str, range(last + 1)))
    if last >= len(classes):
        raise FedBMError(f"{path} has an image with label {last}, but the labels of {name} are 0 to {len(classes) - 1}")
    return SampleIndex(
        classes=classes,
        labels=labels,
        split=np.repeat(np.arange(len(SPLITS), dtype=np.uint8), [len(part) for part in parts.values()]),
        ids=[f"{subset} {i}" for subset, part in parts.items() for i in range(len(part))],
        stream=lambda: enumerate(image for subset in SPLITS for image in file.rows(f"{subset}_images")),
        catalog_name=name,
        size=usable_size(height, width),
        channels=3 if colours else 1,
        notes=() if entry else (f'the catalogue has no MedMNIST set "{name}": classes are named by their numbers',),
    )


def _read_image_shape(file: Npz, subset: str, count: int) -> tuple[int, ...]:
    shape, dtype = file.shape_and_type(f"{subset}_images")
    volume = len(shape) == 5 or (len(shape) == 4 and shape[3] != 3)
    size = "×".join(map(str, shape[1:]))
    file.require(not volume, f"the images are 3-D ({size}), but only 2-D images are supported")
    valid = len(shape) in (3, 4) and dtype == np.uint8 and shape[0] == count and all(shape[1:])
    file.require(valid, f"{subset}_images are {dtype} {shape}, not {count} uint8 images")
    return shape[1:]


def _read_labels(file: Npz, subset: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    several = labels.ndim == 2 and labels.shape[1] > 1
    file.require(not several, "there are several labels for each image, but only one is supported")
    valid = np.issubdtype(labels.dtype, np.integer) and labels.ndim in (1, 2) and not (labels < 0).any()
    file.require(bool(valid), f"{subset}_labels are not whole numbers from 0 up")
    return labels.reshape(-1).astype(np.int64)
