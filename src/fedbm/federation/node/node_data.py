"""A site's own images, with labels in the run's order of classes.

A prepared folder opens in milliseconds. Anything else that fedbm.load() reads is prepared at the census. Every byte is
checked against the manifest when a run is loaded, and again if a file's status has changed since the last message.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbm.data.cache import open_prepared, write_prepared
from fedbm.data.dataset import Dataset, load, make_dataset
from fedbm.data.decode import Decoded
from fedbm.data.readers.sample_index import SampleIndex
from fedbm.data.splits import SPLITS
from fedbm.engine.device import place_images
from fedbm.engine.local_training import Samples
from fedbm.errors import FedBMError
from fedbm.federation.protocol.messages import Refusal, refuse_on_error
from fedbm.models.normalize import Normalise
from fedbm.utils.io import read_json


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's images with the classes of the run."""

    names: tuple[str, ...]  # of its classes, in the site's own order
    dataset: Dataset
    status: Mapping[str, Any]  # of the files at their last full check

    def samples(self, normalise: Normalise, device: torch.device) -> dict[str, Samples]:
        """Return the images of each split that has some, on the device, or on the host if they do not fit."""
        images = place_images(self.dataset.images, device)
        labels = torch.from_numpy(self.dataset.labels).to(device)
        indices = {side: torch.from_numpy(self.dataset.indices(side)).to(images.device) for side in SPLITS}
        return {side: Samples(images, labels, own, normalise) for side, own in indices.items() if len(own)}

    def label_counts(self, side: str) -> tuple[int, ...]:
        """Return the number of images per class of a split."""
        return tuple(self.dataset.counts()[SPLITS.index(side)].tolist())


def open_site(
    data: str, classes: Sequence[str], shape: tuple[int, int, int], known: SiteData | None = None
) -> SiteData:
    """Open the images at *data*; return *known* if its files have not changed since.

    Raise Refusal if the images are damaged or do not fit the run's classes and shape.
    """
    channels, height, width = shape
    with refuse_on_error("data", OSError):
        found = open_images(data, height, channels, verify=False)
        status = _file_status(found)  # taken before reading, so that a change during the check is noticed next time
        if known is not None and known.status == status:
            return known
        found = open_images(data, height, channels, verify=True)  # makes a damaged copy in the cache again
    if found.images.shape[1:] != (height, width, channels):
        raise Refusal("size")
    if any(name not in classes for name in found.classes):
        raise Refusal("classes", classes=list(found.classes))
    if not (found.split == 0).any():
        raise Refusal("empty")
    number = np.array([classes.index(name) for name in found.classes], dtype=np.int64)
    return SiteData(found.classes, replace(found, classes=tuple(classes), labels=number[found.labels]), status)


def open_images(data: str, size: int | None, channels: int | None, verify: bool) -> Dataset:
    """Open a prepared folder, or anything else that load() reads."""
    folder = Path(data).expanduser()
    if (folder / "manifest.json").is_file():
        return make_dataset(folder.name, open_prepared(folder, verify), {})
    return load(data, size=size, channels=channels, verify=verify)


def _file_status(found: Dataset) -> dict[str, Any]:
    """Return what distinguishes an overwritten file without reading it. Programs cannot set the change time (ctime)."""
    assert isinstance(found.images, np.memmap)
    images = Path(str(found.images.filename))
    files = {str(path): path.stat() for path in (images, images.with_name("manifest.json"))}
    return {path: [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev] for path, s in files.items()}


def write_share(folder: Path, dataset: Dataset, samples: NDArray[np.int64], classes: Sequence[str] = ()) -> None:
    """Write some samples of a data set as one node's prepared folder, with *classes* in another order if given.

    An earlier share is replaced. Raise FedBMError if the folder contains anything else, such as a site's own images.
    """
    if folder.exists():
        manifest = folder / "manifest.json"
        if not manifest.is_file() or "share" not in read_json(manifest).get("made_with", {}):
            raise FedBMError(f"{folder} exists already and is not overwritten; move it away")
        shutil.rmtree(folder)
    order = tuple(classes) or dataset.classes
    number = np.array([order.index(name) for name in dataset.classes], dtype=np.int64)
    images = np.ascontiguousarray(dataset.images[samples])
    index = SampleIndex(
        classes=order,
        labels=number[dataset.labels[samples]],
        split=dataset.split[samples],
        ids=[f"image {i}" for i in range(len(samples))],
        stream=lambda: enumerate(images),
    )
    write_prepared(folder, Decoded(images, index), {"share": dataset.name})
