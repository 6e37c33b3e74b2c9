"""A site's own images as a run sees them: its classes by the run's names, whatever their order at the site.

A folder made by write_share(), or one of the cache's, opens in milliseconds; anything else that fedbm.load() reads is
prepared on first use, which the census does. Images that were damaged since are found at every opening, see
image_check.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbm.data.cache import DamagedError, Prepared, PreparedContent, open_prepared, write_prepared
from fedbm.data.dataset import Dataset, load
from fedbm.data.decode import Decoded
from fedbm.data.readers.sample_index import SampleIndex, make_stream
from fedbm.data.splits import SPLITS
from fedbm.engine.local_training import Samples
from fedbm.errors import FedBMError
from fedbm.federation.node.image_check import describe_status, is_verified, record_verified
from fedbm.federation.protocol.messages import Refusal
from fedbm.methods.base import Facts
from fedbm.models.normalize import Normalise


@dataclass(frozen=True, eq=False)
class SiteData:
    """Images, labels by the run's numbers, and who trains, validates and tests."""

    classes: tuple[str, ...]  # the site's own names, in its own order
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    split: NDArray[np.uint8]

    def samples(self, side: str, normalise: Normalise, device: torch.device) -> Samples:
        return Samples(
            torch.from_numpy(self.images).to(device),
            torch.from_numpy(self.labels).to(device),
            self._indices(side).to(device),
            normalise,
        )

    def facts(self, client: int, classes: int) -> Facts:
        own = self.labels[self._indices("train").numpy()]
        return Facts(client, len(own), tuple(np.bincount(own, minlength=classes).tolist()))

    def count(self, side: str) -> int:
        """Return the number of images of a split."""
        return len(self._indices(side))

    def _indices(self, side: str) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.split == SPLITS.index(side)))


def open_site(data: str, classes: Sequence[str], shape: tuple[int, int, int], state: Path) -> SiteData:
    """Open the data at *data* with labels by the run's *classes*; raise Refusal if they do not fit the run.

    What is known of their checksum is kept in *state*.
    """
    channels, height, width = shape
    try:
        found = _open_sound(data, height, channels, state)
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


def _open_sound(data: str, size: int, channels: int, state: Path) -> Dataset | Prepared:
    """Open images after a check against their manifest. Damaged copies in the cache are made again."""
    folder = Path(data).expanduser()
    prepared = (folder / "manifest.json").is_file() and (folder / "images.npy").is_file()

    def read(verify: bool) -> Dataset | Prepared:
        return open_prepared(folder, verify) if prepared else load(data, size=size, channels=channels, verify=verify)

    found = read(verify=False)
    assert isinstance(found.images, np.memmap)
    images = Path(str(found.images.filename))
    if is_verified(images, state):
        return found
    status = describe_status(images)  # before they are read: a change meanwhile is seen next time
    found = read(verify=True)
    record_verified(images, status, state)
    return found


def write_share(folder: Path, dataset: Dataset, samples: NDArray[np.int64], classes: Sequence[str] = ()) -> None:
    """Give one node some of a data set, as a prepared folder; *classes* where it is to list them in another order."""
    order = tuple(classes) or dataset.classes
    number = np.array([order.index(name) for name in dataset.classes], dtype=np.int64)
    images = np.ascontiguousarray(dataset.images[samples])
    index = SampleIndex(
        classes=order,
        labels=number[dataset.labels[samples]],
        split=dataset.split[samples],
        ids=[f"image {i}" for i in range(len(samples))],
        stream=make_stream(list(images)),
    )
    made = PreparedContent(Decoded(images, index, ()), dataset.split[samples], ())
    write_prepared(folder, made, {"share": dataset.name}, verify=False)
