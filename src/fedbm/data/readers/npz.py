"""Read .npz files without loading them as a whole: shapes from the headers, images one by one."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import check_distinct
from fedbm.data.splits import check_usable
from fedbm.errors import FedBMError
from fedbm.utils.io import digest_of

_BROKEN = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Npz:
    """A file and a description of what it must contain."""

    path: Path
    layout: str

    def keys(self) -> set[str]:
        return keys(self.path)

    def arrays(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                return {name: file[name] for name in names}
        except _BROKEN as error:
            raise self._cannot_read(error) from error

    def shape_and_type(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            with zipfile.ZipFile(self.path) as file, file.open(f"{name}.npy") as stream:
                shape, _, dtype = _header(stream)
                return shape, dtype
        except _BROKEN as error:
            raise self._cannot_read(error) from error

    def rows(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """Yield the images of a uint8 array [n, …], reading one at a time."""
        try:
            with zipfile.ZipFile(self.path) as file, file.open(f"{name}.npy") as stream:
                shape, columns_first, _ = _header(stream)
                if columns_first:
                    raise ValueError(f"{name} is stored column by column, save it as np.ascontiguousarray({name})")
                length = int(np.prod(shape[1:]))
                for _ in range(shape[0]):
                    yield np.frombuffer(stream.read(length), dtype=np.uint8).reshape(shape[1:])
        except _BROKEN as error:
            raise self._cannot_read(error) from error

    def require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise FedBMError(
                f"{self.path} is damaged or has the wrong content: {problem}; it must contain {self.layout}"
            )

    def _cannot_read(self, error: Exception) -> FedBMError:
        return FedBMError(f"cannot read {self.path}: {error}; it must contain {self.layout}")


def keys(path: Path) -> set[str]:
    """Return the names of the arrays, or an empty set if the zip contains anything else."""
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except _BROKEN as error:
        raise FedBMError(f"cannot read {path}: {error}; the file is damaged or incomplete, get it again") from error
    return {name.removesuffix(".npy") for name in names} if all(name.endswith(".npy") for name in names) else set()


def identity(path: Path, *more: str) -> str:
    """Return a digest of the checksums in the file, which changes when an array does."""
    with zipfile.ZipFile(path) as file:
        members = [[info.filename, info.file_size, info.CRC] for info in file.infolist()]
    return digest_of({"members": members, "more": more})


Fields = tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.uint8] | None, list[str]]


def read_fields(file: Npz, arrays: Mapping[str, NDArray[Any]], count: int) -> Fields:
    """Return classes, labels, split and ids of *count* samples; split and ids are optional in *arrays*."""
    classes, labels, split, ids = (arrays.get(name) for name in ("classes", "labels", "split", "ids"))
    assert classes is not None
    assert labels is not None
    names = classes.tolist()
    file.require(is_texts(classes) and len(set(names)) == len(names), "classes are not distinct names")
    file.require(is_integers(labels) and len(labels) == count, f"labels are not {count} whole numbers")
    file.require(bool((labels >= 0).all() and (labels < len(names)).all()), "labels point outside classes")
    if split is not None:
        file.require(is_integers(split) and len(split) == count, f"split is not {count} whole numbers")
        file.require(bool(np.isin(split, (0, 1, 2)).all()), "split has values other than 0, 1 and 2")
        split = split.astype(np.uint8)
    if ids is not None:
        file.require(is_texts(ids) and len(ids) == count, f"ids are not {count} names")
        check_distinct(ids.tolist(), str(file.path))
    labels = labels.astype(np.int64)
    check_usable(labels, split, names, str(file.path))
    return tuple(names), labels, split, [f"image {i}" for i in range(count)] if ids is None else ids.tolist()


def usable_size(height: int, width: int) -> int | None:
    """Return the size of square images that need no resampling, or None."""
    return height if height == width and height >= 16 and height % 4 == 0 else None


def is_integers(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and np.issubdtype(array.dtype, np.integer)


def is_texts(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind == "U"


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)
