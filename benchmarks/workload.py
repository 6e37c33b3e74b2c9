"""What the engines are measured on: a data set kept as JPEGs and, prepared once, as an array.

Either a packed file (`jpeg`, `offsets`, `labels`, `split`, `classes`, `ids`), or smooth noise in the shape of HAM10000:
its seven classes in its proportions, 70 % for training, 10 % for validation, 20 % for testing.
"""

from __future__ import annotations

import dataclasses
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import fedbm
from fedbm.data.decode import decode_image

PROPORTIONS = {"akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142}
IMAGES = sum(PROPORTIONS.values())
LEAST = 10  # of a class, so that every side of the split has some


@dataclass(frozen=True)
class Workload:
    name: str
    dataset: fedbm.Dataset
    jpegs: JpegImages

    def words(self) -> str:
        train, val, test = self.dataset.counts().sum(axis=1)
        side = self.dataset.shape[1]
        return f"{self.name}, {side} px, {train:,} training, {val:,} validation and {test:,} test images"


class JpegImages:
    """images[indices] → uint8 [B,H,W,C] on a device, decoded from JPEG bytes every time it is asked for.

    It stands in for the tensor of `Samples.images`: a loop that decodes every epoch, one image after the other, as a
    data loader without workers does.
    """

    is_cpu = False  # its batches are on the device

    def __init__(self, path: Path, size: int, channels: int, device: torch.device) -> None:
        with np.load(path, allow_pickle=False) as file:
            self._bytes, self._offsets = file["jpeg"], file["offsets"]
        self._size, self._channels, self._device = size, channels, device

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self._offsets) - 1, self._size, self._size, self._channels

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        images = [
            decode_image(self._bytes[self._offsets[i] : self._offsets[i + 1]].tobytes(), self._size, self._channels)
            for i in indices.tolist()
        ]
        return torch.from_numpy(np.stack(images)).to(self._device)


def load(path: Path | None, size: int, images: int, folder: Path, device: torch.device) -> Workload:
    """The data of *path*, or made up; prepared in *folder*."""
    name = "smooth noise" if path is None else path.stem
    if path is None:
        path = folder / "noise.npz"
        write_noise(path, images, size)
    dataset = fedbm.load(path, size=size, cache=folder / "cache")
    return Workload(name, dataset, JpegImages(path, size, dataset.shape[0], device))


def write_noise(path: Path, images: int, size: int) -> None:
    """A packed file of *images* JPEGs of smooth noise; the same bytes for the same arguments."""
    rng = np.random.default_rng(0)
    counts = [max(LEAST, round(images * share / IMAGES)) for share in PROPORTIONS.values()]
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    split = np.zeros(len(labels), dtype=np.uint8)
    for label in range(len(counts)):
        held = np.flatnonzero(labels == label)
        val, test = max(1, round(0.1 * len(held))), max(1, round(0.2 * len(held)))
        split[held[:val]] = 1
        split[held[val : val + test]] = 2
    coarse = rng.integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
    with ThreadPoolExecutor() as pool:
        encoded = list(pool.map(lambda pixels: encode(pixels, size), coarse))
    np.savez(
        path,
        jpeg=np.frombuffer(b"".join(encoded), dtype=np.uint8),
        offsets=np.cumsum([0, *map(len, encoded)]),
        labels=labels,
        split=split,
        classes=np.array(list(PROPORTIONS)),
        ids=np.array([f"noise-{number}" for number in range(len(labels))]),
    )


def encode(coarse: np.ndarray, size: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def resized(dataset: fedbm.Dataset, size: int) -> fedbm.Dataset:
    """The same samples at another size, by the nearest pixel: what a step costs does not depend on what they show."""
    side = dataset.shape[1]
    nearest = np.arange(size) * side // size
    return dataclasses.replace(dataset, images=dataset.images[:, nearest][:, :, nearest], checksum=f"{size} px")
