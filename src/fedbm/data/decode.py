"""A listing of encoded images → one uint8 array [n, size, size, channels], decoded in parallel."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedbm.errors import FedBMError

OnBad = Literal["refuse", "skip"]
Progress = Callable[[int, int], None]  # (images done, images in all)

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Listing:
    """The samples of a source before an image is decoded: what every reader gives."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    split: NDArray[np.uint8] | None  # 0 train, 1 val, 2 test; None: still to be split
    ids: list[str]  # what to call a sample when it is to be named
    fetch: Callable[[int], bytes | Path]  # sample i as an encoded image or the file that holds it
    identity: str  # changes when the content does


@dataclass(frozen=True)
class Raw:
    """The samples of a source as arrays."""

    classes: tuple[str, ...]
    images: NDArray[np.uint8]  # [n, H, W, C]
    labels: NDArray[np.int64]
    split: NDArray[np.uint8] | None
    ids: list[str]
    skipped: list[str]  # ids of what could not be decoded


class Undecodable(Exception):
    """These bytes are no image, or only part of one."""


def decode(source: bytes | Path, size: int, channels: int) -> NDArray[np.uint8]:
    """The image at size×size, turned as its EXIF orientation says; resampled only if its size differs."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
            if opened.format not in ("JPEG", "MPO", "PNG"):  # MPO: how some cameras wrap a JPEG
                raise Undecodable(f"{opened.format}, not JPEG or PNG")
            # A large JPEG is decoded small, but at twice the target or more: any smaller would show.
            opened.draft(None, (2 * size, 2 * size))
            image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):  # 16-bit grey, which convert() may clip at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode != _MODES[channels]:
            image = image.convert(_MODES[channels])
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(size, size, channels)
    except (Undecodable, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise Undecodable("not an image") from error
    except Exception as error:  # damaged files raise nearly anything: OSError, SyntaxError, struct.error, …
        raise Undecodable(getattr(error, "strerror", None) or str(error)) from error


def read(listing: Listing, size: int, channels: int, on_bad: OnBad = "refuse", progress: Progress | None = None) -> Raw:
    """Decode every sample; what cannot be decoded is counted and refused, or skipped by name."""
    count = len(listing.ids)
    try:
        images = np.empty((count, size, size, channels), dtype=np.uint8)
    except MemoryError as error:
        raise FedBMError(f"{count} images of {size}×{size} do not fit into memory: choose a smaller size") from error
    problems: dict[int, str] = {}

    def place(i: int) -> None:
        try:
            images[i] = decode(listing.fetch(i), size, channels)
        except Undecodable as error:
            problems[i] = str(error)

    pool = ThreadPoolExecutor(os.cpu_count())  # threads do: Pillow decodes without the interpreter lock
    try:
        for done, _ in enumerate(pool.map(place, range(count)), start=1):
            if progress:
                progress(done, count)
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted, it stops at once

    if problems and on_bad == "refuse":
        first = min(problems)
        raise FedBMError(
            f"{len(problems)} of {count} images cannot be read as JPEG or PNG, the first is "
            f'{listing.ids[first]} ({problems[first]}): mend or remove them, or say on_bad = "skip"'
        )
    good = np.array([i for i in range(count) if i not in problems], dtype=np.int64)
    return Raw(
        classes=listing.classes,
        images=images[good] if problems else images,
        labels=listing.labels[good],
        split=None if listing.split is None else listing.split[good],
        ids=[listing.ids[i] for i in good],
        skipped=[listing.ids[i] for i in sorted(problems)],
    )
