"""Read .npz files of concatenated JPEGs or of pixels. Pixels are read one image at a time."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import Encoded, SampleIndex, check_distinct, text_array
from fedbm.errors import FedBMError
from fedbm.utils.io import digest_of

JPEG_LAYOUT = (
    "jpeg (all JPEGs concatenated, uint8), offsets (n+1 positions in it), labels (n), classes (names in label "
    "order), ids (n names) and optionally split (n: 0 train, 1 val, 2 test)"
)
PIXEL_LAYOUT = (
    "images (n of equal size, grey or RGB, uint8), labels (n), classes (names in label order), and optionally split "
    "(n: 0 train, 1 val, 2 test), ids (n names) and columns such as writer or site (n values each)"
)
PIXEL_KEYS = frozenset(("images", "labels", "classes"))

_JPEG_KEYS = ("jpeg", "offsets", "labels", "classes", "ids")
_BROKEN = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Npz:
    """A file and a description of what it must contain."""

    path: Path
    layout: str

    def arrays(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        with self._explain_errors(), np.load(self.path, allow_pickle=False) as file:
            return {name: file[name] for name in names}

    def shape_and_type(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        with self._open(name) as stream:
            shape, _, dtype = _read_header(stream)
            return shape, dtype

    def rows(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """Yield the images of a uint8 array [n, …], reading one at a time."""
        with self._open(name) as stream:
            shape, columns_first, _ = _read_header(stream)
            if columns_first:
                raise ValueError(f"{name} is stored column by column, save it as np.ascontiguousarray({name})")
            length = int(np.prod(shape[1:]))
            for _ in range(shape[0]):
                yield np.frombuffer(stream.read(length), dtype=np.uint8).reshape(shape[1:])

    def require(self, condition: bool, problem: str) -> None:
        """Raise FedBMError with the *problem* unless the *condition* holds."""
        if not condition:
            raise FedBMError(f"{self.path} has the wrong content: {problem}; it must contain {self.layout}")

    def require_arrays(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in array_names(self.path)]
        self.require(not missing, f"it has no {' and no '.join(missing)}")

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        with self._explain_errors(), zipfile.ZipFile(self.path) as file, file.open(f"{name}.npy") as stream:
            yield stream

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            raise FedBMError(f"cannot read {self.path}: {error}; it must contain {self.layout}") from error


def scan_jpegs(path: Path) -> SampleIndex:
    """Read a file in which image i is jpeg[offsets[i]:offsets[i+1]]."""
    file = Npz(path, JPEG_LAYOUT)
    file.require_arrays(_JPEG_KEYS)
    arrays = file.arrays(sorted(array_names(path) & {*_JPEG_KEYS, "split"}))
    jpeg, offsets = arrays["jpeg"], arrays["offsets"]
    file.require(jpeg.dtype == np.uint8 and jpeg.ndim == 1, "jpeg is not a vector of bytes")
    file.require(_is_integers(offsets) and len(offsets) > 1, "offsets are not whole numbers")
    file.require(offsets[0] >= 0 and offsets[-1] <= len(jpeg), "offsets are outside of jpeg")
    file.require(bool((offsets[1:] >= offsets[:-1]).all()), "offsets are not ascending")
    count = len(offsets) - 1

    def stream() -> Iterator[tuple[int, Encoded]]:
        return ((i, jpeg[offsets[i] : offsets[i + 1]].tobytes()) for i in range(count))

    return SampleIndex(*_read_fields(file, arrays, count), stream)


def scan_pixels(path: Path) -> SampleIndex:
    """Read a file of images [n,H,W] or [n,H,W,3]. Every further array of n texts or whole numbers is a column."""
    file = Npz(path, PIXEL_LAYOUT)
    shape, dtype = file.shape_and_type("images")
    colour = len(shape) == 4 and shape[3] == 3
    file.require(dtype == np.uint8 and (len(shape) == 3 or colour) and all(shape), f"images are {dtype} {shape}")
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
        channels=3 if colour else 1,
    )


def array_names(path: Path) -> set[str]:
    """Return the names of the arrays, or an empty set if the zip contains anything else."""
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except _BROKEN as error:
        raise FedBMError(f"cannot read {path}: {error}; the file is damaged or incomplete, get it again") from error
    return {name.removesuffix(".npy") for name in names} if all(name.endswith(".npy") for name in names) else set()


def identity(path: Path, *more: str) -> str:
    """Return a digest of the checksums in the file, which changes when an array changes."""
    with zipfile.ZipFile(path) as file:
        members = [[info.filename, info.file_size, info.CRC] for info in file.infolist()]
    return digest_of({"members": members, "more": more})


def usable_size(height: int, width: int) -> int | None:
    """Return the size of square images that need no resampling, or None."""
    return height if height == width and height >= 16 and height % 4 == 0 else None


Fields = tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.uint8] | None, list[str]]


def _read_fields(file: Npz, arrays: Mapping[str, NDArray[Any]], count: int) -> Fields:
    """Return classes, labels, split and ids of *count* samples. Split and ids are optional in *arrays*."""
    classes, labels, split, ids = arrays["classes"], arrays["labels"], arrays.get("split"), arrays.get("ids")
    names = classes.tolist()
    file.require(_is_texts(classes) and len(set(names)) == len(names), "classes are not distinct names")
    file.require(_is_integers(labels) and len(labels) == count, f"labels are not {count} whole numbers")
    file.require(bool((labels >= 0).all() and (labels < len(names)).all()), "labels point outside classes")
    if split is not None:
        file.require(_is_integers(split) and len(split) == count, f"split is not {count} whole numbers")
        file.require(bool(np.isin(split, (0, 1, 2)).all()), "split has values other than 0, 1 and 2")
        split = split.astype(np.uint8)
    if ids is not None:
        file.require(_is_texts(ids) and len(ids) == count, f"ids are not {count} names")
        check_distinct(ids.tolist(), str(file.path))
    sample_ids = [f"image {i}" for i in range(count)] if ids is None else ids.tolist()
    return tuple(names), labels.astype(np.int64), split, sample_ids


def _is_integers(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and np.issubdtype(array.dtype, np.integer)


def _is_texts(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind == "U"


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns are stored first, and type of an array."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)
