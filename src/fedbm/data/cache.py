"""The cache of prepared data sets. Each data set is a folder of arrays:

    images.npy [n, H, W, C] uint8 · labels.npy [n] int64 · split.npy [n] uint8 · ids.npy [n] text
    column-0.npy, … [n] text, one for each column of the source · manifest.json

A folder is written under a temporary name and then renamed, so it is never incomplete. If two processes prepare the
same data at once, the second uses the result of the first. Opening a folder checks the length of every file and the
SHA-256 of every file except the images. Only on request, it also checks images and class names by checksum().
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.decode import Decoded
from fedbm.data.readers.sample_index import SampleIndex, text_array
from fedbm.errors import FedBMError
from fedbm.utils.io import atomic_write, cannot_write, read_json, sha256_file, write_json

FORMAT = 4

MAX_RENAMES = 10  # another process may write the same folder at the same time

_STALE_SECONDS = 24 * 60 * 60  # a temporary folder of this age belongs to a process that was killed


class DamagedError(FedBMError):
    """A prepared folder does not match its manifest."""


def open_or_build(
    folder: Path, build: Callable[[], Decoded], settings: Mapping[str, Any], verify: bool = False
) -> Decoded:
    """Open the data set in *folder*, or build it if it is missing or damaged. Note the damage."""
    notes: tuple[str, ...] = ()
    try:
        return open_prepared(folder, verify)
    except DamagedError as error:
        if os.path.exists(folder):
            notes = (f"the prepared copy {folder} was damaged ({error}) and was rebuilt",)
    write_prepared(folder, build(), settings)
    made = open_prepared(folder, verify)
    return replace(made, index=replace(made.index, notes=made.index.notes + notes))


def open_prepared(folder: Path, verify: bool) -> Decoded:
    """Open *folder* and check it. Check the images and the class names only with *verify*.

    The images are memory-mapped and shared. A process that changes pixels gets its own copy.
    """
    try:
        manifest = read_json(folder / "manifest.json")
        if manifest["format"] != FORMAT:
            raise DamagedError(f"its format is {manifest['format']}, not {FORMAT}")
        arrays = {name: _open_array(folder, name, about) for name, about in manifest["files"].items()}
        images, classes = arrays["images"], tuple(manifest["classes"])
        if list(images.shape) != manifest["shape"] or images.dtype != np.uint8:
            raise DamagedError("images.npy has the wrong shape or type")
        if verify and checksum(classes, images, arrays["labels"], arrays["split"]) != manifest["checksum"]:
            raise DamagedError("images.npy or the class names have the wrong checksum")
        index = SampleIndex(
            classes=classes,
            labels=np.array(arrays["labels"]),
            split=np.array(arrays["split"]),
            ids=arrays["ids"].tolist(),
            stream=lambda: enumerate(images),
            columns={name: np.array(arrays[f"column-{i}"]) for i, name in enumerate(manifest["columns"])},
            catalog_name=manifest["catalog_name"],
            notes=tuple(manifest["notes"]),
        )
        return Decoded(images, index, manifest["checksum"])
    except (FedBMError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"it cannot be read: {error}") from error


def write_prepared(folder: Path, decoded: Decoded, settings: Mapping[str, Any]) -> None:
    """Write *folder*, replacing a damaged one. If another process has written an intact one, keep it."""
    images, index = decoded.images, decoded.index
    assert index.split is not None
    arrays: dict[str, NDArray[Any]] = {
        "images": images,
        "labels": index.labels,
        "split": index.split,
        "ids": text_array(index.ids),
        **{f"column-{i}": values for i, values in enumerate(index.columns.values())},
    }
    _remove_stale(folder.parent)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    files = {}
    try:
        for name, array in arrays.items():
            path = temporary / f"{name}.npy"
            with atomic_write(path) as part, part.open("wb") as stream:
                np.save(stream, array, allow_pickle=False)
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        manifest = {
            "format": FORMAT,
            "made_with": dict(settings),
            "classes": list(index.classes),
            "shape": list(images.shape),
            "columns": list(index.columns),
            "catalog_name": index.catalog_name,
            "files": files,
            "checksum": checksum(index.classes, images, index.labels, index.split),
            "notes": list(index.notes),
        }
        write_json(temporary / "manifest.json", manifest)
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def checksum(
    classes: tuple[str, ...], images: NDArray[np.uint8], labels: NDArray[np.int64], split: NDArray[np.uint8]
) -> str:
    """Return the SHA-256 of class names, shape, images, labels and split, which identifies the data."""
    digest = hashlib.sha256(json.dumps([classes, images.shape]).encode())
    for array in (images, labels, split):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _open_array(folder: Path, name: str, expected: dict[str, Any]) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if path.stat().st_size != expected["bytes"]:
        raise DamagedError(f"{path.name} has the wrong length")
    if name != "images" and sha256_file(path) != expected["sha256"]:
        raise DamagedError(f"{path.name} has the wrong checksum")
    return np.load(path, mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]


def _publish(temporary: Path, folder: Path) -> None:
    """Rename *temporary* to *folder*, unless another process has written an intact folder."""
    for _ in range(MAX_RENAMES):
        try:
            temporary.rename(folder)
            return
        except OSError as error:  # the folder exists, or it cannot be written
            failure = error
        with suppress(DamagedError):
            open_prepared(folder, verify=True)
            return
        shutil.rmtree(folder, ignore_errors=True)
    raise cannot_write(folder, failure) from failure


def _remove_stale(cache: Path) -> None:
    """Remove temporary folders of killed processes, judged by age, because several machines may share a cache."""
    for folder in cache.glob(".*.????????.part"):
        with suppress(OSError):  # another process may remove it at the same time
            if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder)
