"""Read .npz files: concatenated JPEGs, pixels, or MedMNIST's files. Pixels are read one image at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.catalog.entries import CATALOG
from fedbm.data.readers.file_tree import explain_damage
from fedbm.data.readers.sample_index import SampleIndex, check_distinct, text_array
from fedbm.data.splits import SPLITS, parse_split
from fedbm.errors import FedBMError

JPEG_LAYOUT = (
    "jpeg (all JPEGs concatenated, uint8), offsets (n+1 positions in it), labels (n), classes (names in label "
    "order), ids (n names) and optionally split (n: 0 train, 1 val, 2 test)"
)
PIXEL_LAYOUT = (
    "images (n of equal size, grey or RGB, uint8), labels (n), classes (names in label order), and optionally split "
    "(n: 0 train, 1 val, 2 test), ids (n names) and columns such as writer or site (n values each)"
)
MEDMNIST_LAYOUT = (
    "train_images, train_labels, val_images, val_labels, test_images and test_labels, as in MedMNIST's files of 2-D "
    "images (uint8, all of one size) with one label each"
)
JPEG_ARRAYS = {"jpeg", "offsets", "labels", "classes", "ids"}
PIXEL_ARRAYS = {"images", "labels", "classes"}
MEDMNIST_ARRAYS = {f"{subset}_{kind}" for subset in SPLITS for kind in ("images", "labels")}


@dataclass(frozen=True)
class Npz:
    """A file and a description of what it must contain."""

    path: Path
    layout: str

    def arrays(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        with self._explain_errors(), np.load(self.path, allow_pickle=False) as file:
            return {name: file[name] for name in names}

    def image_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array of images [n,H,W] or [n,H,W,3]."""
        with self._open(name) as (_, shape, dtype):
            valid = len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)
            self.require(valid and dtype == np.uint8 and all(shape[1:]), f"{name} are {dtype} {shape}")
            return shape

    def rows(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """Yield the images of a uint8 array [n, …], reading one at a time."""
        with self._open(name) as (stream, shape, _):
            length = int(np.prod(shape[1:]))
            for _ in range(shape[0]):
                yield np.frombuffer(stream.read(length), dtype=np.uint8).reshape(shape[1:])

    def require(self, condition: object, problem: str) -> None:
        """Raise FedBMError with the *problem* unless the *condition* holds."""
        if not condition:
            raise FedBMError(f"{self.path} has the wrong content: {problem}; it must contain {self.layout}")

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
        """Yield a stream after the header of an array, its shape and its type."""
        with self._explain_errors(), zipfile.ZipFile(self.path) as file, file.open(f"{name}.npy") as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, has_columns_first, dtype = read(stream)
            if has_columns_first:
                raise ValueError(f"{name} is stored column by column, save it as np.ascontiguousarray({name})")
            yield stream, shape, dtype

    def _explain_errors(self) -> AbstractContextManager[None]:
        return explain_damage(self.path, f"it must contain {self.layout}")


def scan_jpegs(path: Path) -> SampleIndex:
    """Read a file in which image i is jpeg[offsets[i]:offsets[i+1]]."""
    file = Npz(path, JPEG_LAYOUT)
    arrays = file.arrays(sorted(array_names(path) & {*JPEG_ARRAYS, "split"}))
    jpeg, offsets = arrays["jpeg"], arrays["offsets"]
    file.require(jpeg.dtype == np.uint8 and jpeg.ndim == 1, "jpeg is not a vector of bytes")
    valid = _is_integers(offsets) and len(offsets) > 1 and (offsets[1:] >= offsets[:-1]).all()
    valid = valid and offsets[0] >= 0 and offsets[-1] <= len(jpeg)
    file.require(valid, "offsets are not ascending positions in jpeg")
    return SampleIndex(
        *_read_fields(file, arrays, len(offsets) - 1),
        lambda: ((i, jpeg[start:end].tobytes()) for i, (start, end) in enumerate(pairwise(offsets))),
    )


def scan_pixels(path: Path) -> SampleIndex:
    """Read a file of images [n,H,W] or [n,H,W,3]. Every further array of n texts or whole numbers is a column."""
    file = Npz(path, PIXEL_LAYOUT)
    shape = file.image_shape("images")
    file.require(shape[0], "there are no images")
    arrays = file.arrays(sorted(array_names(path) - {"images"}))
    columns = {name: values for name, values in arrays.items() if name not in ("labels", "classes", "split", "ids")}
    for name, values in columns.items():
        valid = (_is_integers(values) or _is_texts(values)) and len(values) == shape[0]
        file.require(valid, f"{name} must have one text or whole number for each of the {shape[0]} images")
    return SampleIndex(
        *_read_fields(file, arrays, shape[0]),
        lambda: enumerate(file.rows("images")),
        columns={name: text_array(values.tolist()) for name, values in columns.items()},
        size=usable_size(*shape[1:3]),
        channels=3 if len(shape) == 4 else 1,
    )


def scan_medmnist(path: Path, name: str) -> SampleIndex:
    """Read a file of MedMNIST: 2-D images of one size, one label each, with the published split.

    The file has no class names. The catalogue has them under *name*.
    """
    file = Npz(path, MEDMNIST_LAYOUT)
    given = file.arrays([f"{subset}_labels" for subset in SPLITS])
    shapes = [file.image_shape(f"{subset}_images") for subset in SPLITS]
    for subset, array, shape in zip(SPLITS, given.values(), shapes, strict=True):
        valid = np.issubdtype(array.dtype, np.integer) and array.size == shape[0] and shape[1:] == shapes[0][1:]
        file.require(valid, f"{subset}_images are {shape} and {subset}_labels {array.dtype} {array.shape}")
    labels = np.concatenate([array.reshape(-1).astype(np.int64) for array in given.values()])
    entry = CATALOG.get(name)
    limit = len(entry.classes) if entry else len(labels)
    least, most = int(labels.min(initial=0)), int(labels.max(initial=0))
    file.require(least >= 0 and most < limit, f"the labels {least} to {most} are not from 0 to {limit - 1}")
    sizes = [shape[0] for shape in shapes]
    return SampleIndex(
        classes=tuple(entry.classes if entry else map(str, range(most + 1))),
        labels=labels,
        split=np.repeat(np.arange(len(SPLITS), dtype=np.uint8), sizes),
        ids=[f"{subset} {i}" for subset, size in zip(SPLITS, sizes, strict=True) for i in range(size)],
        stream=lambda: enumerate(image for subset in SPLITS for image in file.rows(f"{subset}_images")),
        catalog_name=name,
        size=usable_size(*shapes[0][1:3]),
        channels=3 if len(shapes[0]) == 4 else 1,
        notes=() if entry else (f'the catalogue has no MedMNIST set "{name}": classes are named by their numbers',),
    )


def array_names(path: Path) -> set[str]:
    """Return the names of the arrays, or an empty set if the zip contains anything else."""
    with explain_damage(path), zipfile.ZipFile(path) as file:
        names = file.namelist()
    return {name.removesuffix(".npy") for name in names} if all(name.endswith(".npy") for name in names) else set()


def usable_size(height: int, width: int) -> int | None:
    """Return the size of square images that need no resampling, or None."""
    return height if height == width and height >= 16 and height % 4 == 0 else None


def _read_fields(
    file: Npz, arrays: Mapping[str, NDArray[Any]], count: int
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.uint8] | None, list[str]]:
    """Return classes, labels, split and ids of *count* samples. Split and ids are optional in *arrays*."""
    classes, labels, split, ids = arrays["classes"], arrays["labels"], arrays.get("split"), arrays.get("ids")
    names = classes.tolist()
    file.require(_is_texts(classes) and len(set(names)) == len(names), "classes are not distinct names")
    valid = _is_integers(labels) and len(labels) == count and np.isin(labels, np.arange(len(names))).all()
    file.require(valid, f"labels are not {count} whole numbers from 0 to {len(names) - 1}")
    if split is not None:
        file.require(split.shape == (count,), f"split does not have {count} values")
        split = parse_split(split.tolist(), str(file.path))
    if ids is None:
        ids = text_array([f"image {i}" for i in range(count)])
    file.require(_is_texts(ids) and len(ids) == count, f"ids are not {count} names")
    check_distinct(ids.tolist(), str(file.path))
    return tuple(names), labels.astype(np.int64), split, ids.tolist()


def _is_integers(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and np.issubdtype(array.dtype, np.integer)


def _is_texts(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind == "U"
