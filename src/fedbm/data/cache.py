"""Decoded once, opened at once ever after: a folder that holds a data set as arrays.

    images.npy [n, H, W, C] uint8 · labels.npy [n] int64 · split.npy [n] uint8 · ids.npy [n] text
    column-0.npy, … [n] text, one for each column that the source has · manifest.json

It is written temporary its place and renamed as a whole, so it is there entirely or not at all; of two processes
that prepare it at once, the second takes what the first has made. All but the images is checked by SHA-256
whenever it is opened, the images by their length, and by SHA-256 when that is asked for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.decode import Decoded
from fedbm.data.readers.sample_index import text_array
from fedbm.errors import FedBMError
from fedbm.utils.io import atomic_write, cannot_write, read_json, sha256_file, write_json

FORMAT = 3

_LEFT_BEHIND = 24 * 60 * 60  # seconds after which a folder that is still half written has lost its process

_KINDS = {"images": "u1", "labels": "i8", "split": "u1"}  # numpy's kind and width; all others are texts


class DamagedError(Exception):
    """A prepared folder is not what its manifest says; the message says how."""


@dataclass(frozen=True, eq=False)
class PreparedContent:
    """What there is to be written."""

    decoded: Decoded
    split: NDArray[np.uint8]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Prepared:
    classes: tuple[str, ...]
    images: NDArray[np.uint8]  # memory-mapped: processes share it, and what one writes into it stays its own
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]
    ids: NDArray[np.str_]
    columns: dict[str, NDArray[np.str_]]
    known_as: str | None  # see SampleIndex
    notes: tuple[str, ...]
    skipped: tuple[str, ...]
    checksum: str


def open_or_build(
    folder: Path,
    build: Callable[[], PreparedContent],
    settings: Mapping[str, Any],
    verify: bool = False,
) -> tuple[Prepared, str]:
    """The data set in *folder*, made by *build* where there is none or it is damaged.

    Also says what was wrong with a damaged one, '' otherwise.
    """
    damage = ""
    if _is_there(folder):
        try:
            return open_prepared(folder, verify), ""
        except DamagedError as error:
            damage = str(error)
    write_prepared(folder, build(), settings, verify)
    try:
        return open_prepared(folder, verify), damage
    except DamagedError as error:
        raise FedBMError(f"{folder} was damaged right after it was written ({error}): is the disk sound?") from error


def open_prepared(folder: Path, verify: bool) -> Prepared:
    """Open *folder* after checking format, lengths and checksums, that of the images only with *verify*."""
    try:
        manifest = read_json(folder / "manifest.json")
        if manifest["format"] != FORMAT:
            raise DamagedError(f"its format is {manifest['format']}, not {FORMAT}")
        arrays = {name: _open_array(folder, name, about, verify) for name, about in manifest["files"].items()}
        if list(arrays["images"].shape) != manifest["shape"]:
            raise DamagedError("images.npy has another shape")
        return Prepared(
            classes=tuple(manifest["classes"]),
            images=arrays["images"],
            labels=np.array(arrays["labels"]),
            split=np.array(arrays["split"]),
            ids=np.array(arrays["ids"]),
            columns={name: np.array(arrays[f"column-{i}"]) for i, name in enumerate(manifest["columns"])},
            known_as=manifest["known_as"],
            notes=tuple(manifest["notes"]),
            skipped=tuple(manifest["skipped"]),
            checksum=manifest["checksum"],
        )
    except (FedBMError, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"it cannot be read: {error}") from error


def remove_if_damaged(folder: Path) -> str:
    """Check every byte, and remove what is damaged, so that it is made anew. Says what was wrong, '' if nothing."""
    try:
        open_prepared(folder, verify=True)
    except DamagedError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return str(error)
    return ""


def write_prepared(folder: Path, made: PreparedContent, settings: Mapping[str, Any], verify: bool) -> None:
    """Write *made* as *folder*, replacing a damaged one; a sound one put there meanwhile stays."""
    images, index = made.decoded.images, made.decoded.index
    arrays: dict[str, NDArray[Any]] = {
        "images": images,
        "labels": index.labels,
        "split": made.split,
        "ids": text_array(index.ids),
        **{f"column-{i}": values for i, values in enumerate(index.columns.values())},
    }
    _sweep(folder.parent)
    temporary = _beside(folder)
    try:
        for name, array in arrays.items():
            with atomic_write(temporary / f"{name}.npy") as path, path.open("wb") as stream:
                np.save(stream, array, allow_pickle=False)
        manifest = {
            "format": FORMAT,
            "made_with": dict(settings),
            "classes": list(index.classes),
            "shape": list(images.shape),
            "columns": list(index.columns),
            "known_as": index.known_as,
            "files": {name: _describe(temporary / f"{name}.npy") for name in arrays},
            "checksum": checksum(index.classes, images, index.labels, made.split),
            "notes": [*index.notes, *made.notes],
            "skipped": made.decoded.skipped,
        }
        write_json(temporary / "manifest.json", manifest)
        _publish(temporary, folder, verify)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def checksum(
    classes: tuple[str, ...],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    split: NDArray[np.uint8],
) -> str:
    """The identity of the data: SHA-256 over class names, shape, images, labels and split."""
    digest = hashlib.sha256(json.dumps([classes, images.shape]).encode())
    for array in (images, labels, split):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _open_array(folder: Path, name: str, described: dict[str, Any], verify: bool) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if path.stat().st_size != described["bytes"]:
        raise DamagedError(f"{path.name} has another length")
    if (verify or name != "images") and sha256_file(path) != described["sha256"]:
        raise DamagedError(f"{path.name} has another checksum")
    array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    if not array.dtype.str[1:].startswith(_KINDS.get(name, "U")):
        raise DamagedError(f"{path.name} holds {array.dtype}")
    return array


def _publish(temporary: Path, folder: Path, verify: bool) -> None:
    for _ in range(100):  # each turn lost means that another process has just put a folder there
        try:
            temporary.rename(folder)
            return
        except OSError as error:
            if not _is_there(folder):
                raise cannot_write(folder, error) from error
        with suppress(DamagedError):
            open_prepared(folder, verify)
            return
        aside = _beside(folder)
        try:
            folder.rename(aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise cannot_write(folder, error) from error
        shutil.rmtree(aside, ignore_errors=True)
    raise FedBMError(f"cannot put {folder} in place: other processes keep damaging it; remove it and try again")


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")


def _is_there(folder: Path) -> bool:
    try:
        return folder.exists()
    except OSError as error:
        raise FedBMError(f"cannot look into {folder.parent}: {error.strerror}; choose another cache") from error


def _sweep(cache: Path) -> None:
    """Remove what killed processes have left half written; told by its age, for a cache may serve many machines."""
    for left in cache.glob(".*.????????.part"):
        with suppress(OSError):  # another process may be sweeping too
            if time.time() - left.stat().st_mtime > _LEFT_BEHIND:
                shutil.rmtree(left)


def _describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
