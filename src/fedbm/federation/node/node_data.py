"""A site's own images with labels in the run's order of classes.

A prepared folder opens in milliseconds. Anything else that fedbm.load() reads is prepared at the census. The images are
checked against their manifest at every message. Each message is a new process, so <state>/verified_images.json records
the status that large files had at their last full check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbm.data.cache import DamagedError, Prepared, open_prepared, write_prepared
from fedbm.data.dataset import Dataset, load
from fedbm.data.decode import Decoded
from fedbm.data.readers.sample_index import SampleIndex
from fedbm.data.splits import SPLITS
from fedbm.engine.device import place_images
from fedbm.engine.local_training import Samples
from fedbm.errors import FedBMError
from fedbm.federation.protocol.messages import Refusal
from fedbm.methods.base import Facts
from fedbm.models.normalize import Normalise
from fedbm.utils.io import read_json, write_json

# Up to this size every byte is hashed at every message: SHA-256 of 256 MiB took 0.18 s of CPU on an AMD EPYC with SHA
# instructions, next to 2.4 s to import torch. Larger files with an unchanged status are taken to be unchanged.
FULL_CHECK_BYTES = 256 * 2**20


@dataclass(frozen=True, eq=False)
class SiteData:
    """Images, labels by the run's numbers, and the split of each image."""

    classes: tuple[str, ...]  # the site's own names, in its own order
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]

    def samples(self, side: str, normalise: Normalise, device: torch.device) -> Samples:
        images, labels = place_images(self.images, device), torch.from_numpy(self.labels).to(device)
        return Samples(images, labels, self._indices(side).to(images.device), normalise)

    def facts(self, client: int, classes: int) -> Facts:
        own = self.labels[self._indices("train").numpy()]
        return Facts(client, len(own), tuple(np.bincount(own, minlength=classes).tolist()))

    def count(self, side: str) -> int:
        """Return the number of images of a split."""
        return len(self._indices(side))

    def _indices(self, side: str) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.split == SPLITS.index(side)))


def open_site(data: str, classes: Sequence[str], shape: tuple[int, int, int], state: Path) -> SiteData:
    """Open the images at *data*; raise Refusal if they are damaged or do not fit the run's classes and shape."""
    channels, height, width = shape
    try:
        found = _open_checked(data, height, channels, state / "verified_images.json")
    except (FedBMError, DamagedError, OSError) as error:
        raise Refusal("data") from error
    if found.images.shape[1:] != (height, width, channels):
        raise Refusal("size")
    if any(name not in classes for name in found.classes):
        raise Refusal("classes", classes=list(found.classes))
    number = np.array([classes.index(name) for name in found.classes], dtype=np.int64)
    site = SiteData(found.classes, found.images, number[found.labels], found.split)
    if not (site.split == 0).any():
        raise Refusal("empty")
    return site


def open_images(data: str, size: int | None, channels: int | None, verify: bool) -> Dataset | Prepared:
    """Open a prepared folder, or anything else that load() reads."""
    folder = Path(data).expanduser()
    if (folder / "manifest.json").is_file():
        return open_prepared(folder, verify)
    return load(data, size=size, channels=channels, verify=verify)


def _open_checked(data: str, size: int, channels: int, record: Path) -> Dataset | Prepared:
    """Open images after a check against their manifest. A damaged copy in the cache is made again."""
    found = open_images(data, size, channels, verify=False)
    assert isinstance(found.images, np.memmap)
    images = Path(str(found.images.filename))
    large = images.stat().st_size > FULL_CHECK_BYTES
    status = _file_status(images)  # taken before reading, so that a change during the check is noticed next time
    if large and record.exists():
        try:
            if read_json(record) == status:
                return found
        except FedBMError:  # a damaged record: check the images again
            pass
    found = open_images(data, size, channels, verify=True)
    if large:
        write_json(record, status)
    return found


def _file_status(images: Path) -> dict[str, Any]:
    """Return what distinguishes an overwritten file without reading it. Programs cannot set the change time (ctime)."""
    found: dict[str, Any] = {"format": 1, "path": str(images)}
    for path in (images, images.with_name("manifest.json")):
        status = path.stat()
        found[path.name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
    return found


def write_share(folder: Path, dataset: Dataset, samples: NDArray[np.int64], classes: Sequence[str] = ()) -> None:
    """Write some samples of a data set as one node's prepared folder, with *classes* in another order if given."""
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
    write_prepared(folder, Decoded(images, index, skipped=()), {"share": dataset.name})
