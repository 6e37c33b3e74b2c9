"""Small images, folders of images and data sets for tests."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from fedbm.data.dataset import Dataset
from fedbm.data.decode import Decoded, decode_images
from fedbm.data.readers.dispatch import detect
from fedbm.data.readers.sample_index import SampleIndex
from fedbm.data.splits import check_classes

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


def scan(path: Path, seed: int = 0) -> SampleIndex:
    """Return the samples at a path, checked as load() checks them."""
    index = detect(path, seed).scan()
    check_classes(index.labels, index.split, index.classes, str(path))
    return index


def read_at(path: Path, size: int = 16, channels: int = 3, on_bad_file="refuse") -> Decoded:
    return decode_images(scan(path), size, channels, on_bad_file)


def shades(decoded: Decoded) -> list[int]:
    """Return the grey level of the first pixel of every image."""
    return decoded.images[:, 0, 0, 0].tolist()


def save(path: Path, value: int = 128, size: tuple[int, int] = (20, 20), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)
    return path


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(value: int = 128) -> bytes:
    return encoded(Image.new("RGB", (20, 20), (value,) * 3))


def cut_jpeg() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    return encoded(Image.fromarray(noise), "JPEG")[:-400]


def make_dataset(images: np.ndarray, labels, split, classes=("a", "b"), **more) -> Dataset:
    channels = images.shape[3]
    return Dataset(
        name="toy",
        classes=classes,
        concepts=classes,
        modality="medical",
        images=images,
        labels=np.array(labels),
        split=np.array(split, dtype=np.uint8),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        hflip=False,
        vflip=False,
        recommends={},
        checksum="abc",
        notes=(),
        **more,
    )


def flat_folder(root: Path) -> Path:
    """Write cat/0…2.png with shades 0, 1, 2 and dog/0…2.png with 100, 101, 102."""
    for shade, name in enumerate(("cat", "dog")):
        for i in range(3):
            save(root / name / f"{i}.png", 100 * shade + i)
    return root


def split_folder(root: Path, *names: str) -> Path:
    for side in names or ("train", "val", "test"):
        for shade, name in enumerate(("cat", "dog")):
            save(root / side / name / "1.png", 10 * shade)
    return root


Members = dict[str, bytes]
FLAT: Members = {f"{name}/{i}.png": png(100 * k + i) for k, name in enumerate(("cat", "dog")) for i in range(3)}


def make_zip(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def small_chars74k() -> dict[str, np.ndarray]:
    """Return arrays like those of Chars74K, but smaller and black: every class once by each of 55 writers."""
    return {
        "images": np.zeros((55 * 62, 16, 16), dtype=np.uint8),
        "labels": np.tile(np.arange(62), 55),
        "writer": np.repeat(np.arange(55), 62),
        "classes": np.array([*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]),
    }
