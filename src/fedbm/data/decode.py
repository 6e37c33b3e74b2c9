"""Decode images in parallel into one uint8 array [n, size, size, channels].

The array must fit into memory: 10,000 colour images of 128 pixels need 0.5 GB.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import Encoded, SampleIndex
from fedbm.errors import FedBMError

BadFiles = Literal["refuse", "skip"]
Progress = Callable[[int, int], None]  # (images done, images in total)

_MODES = {1: "L", 3: "RGB"}
_BATCH = 32  # images per thread


@dataclass(frozen=True)
class Decoded:
    """Decoded images, without those that were skipped."""

    images: NDArray[np.uint8]  # [n, H, W, C]
    index: SampleIndex
    skipped: tuple[str, ...]  # ids of the samples that could not be decoded


class DecodeError(Exception):
    """The bytes are not a complete image."""


def decode_image(source: Encoded, size: int, channels: int) -> NDArray[np.uint8]:
    """Return the image at size×size. Apply its EXIF orientation, and resample it only if its size differs."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        if callable(source):
            source = source()
        if isinstance(source, np.ndarray):
            image = Image.fromarray(source)
        else:
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
                if opened.format not in ("JPEG", "MPO", "PNG"):  # MPO: a JPEG as written by some cameras
                    raise DecodeError(f"{opened.format}, not JPEG or PNG")
                # Decode a large JPEG at reduced size, but at least twice the target. A smaller size would be visible.
                opened.draft(None, (2 * size, 2 * size))
                image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):  # 16-bit grey, which convert() would clip at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode != _MODES[channels]:
            image = image.convert(_MODES[channels])
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(size, size, channels)
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise DecodeError("not an image") from error
    except Exception as error:  # damaged files raise many kinds of errors: OSError, SyntaxError, struct.error, …
        raise DecodeError(getattr(error, "strerror", None) or str(error)) from error


def decode_images(
    index: SampleIndex, size: int, channels: int, on_bad_file: BadFiles = "refuse", progress: Progress | None = None
) -> Decoded:
    """Decode every sample. If one fails, raise FedBMError, or skip it with on_bad_file = "skip"."""
    count = len(index.ids)
    try:
        images = np.empty((count, size, size, channels), dtype=np.uint8)
    except MemoryError as error:
        raise FedBMError(f"{count} images of {size}×{size} do not fit into memory: use a smaller size") from error
    problems: dict[int, str] = {}

    def decode_one(sample: tuple[int, Encoded]) -> None:
        i, encoded = sample
        try:
            images[i] = decode_image(encoded, size, channels)
        except DecodeError as error:
            problems[i] = str(error)

    # Pillow releases the interpreter lock while decoding. Batches are small, so that little of the source is in memory.
    workers, stream, done = os.cpu_count() or 1, index.stream(), 0
    with ThreadPoolExecutor(workers) as pool:
        while batch := list(islice(stream, _BATCH * workers)):
            for _ in pool.map(decode_one, batch):  # an interruption cancels the rest of the batch
                done += 1
                if progress:
                    progress(done, count)
    if problems and on_bad_file == "refuse":
        first = min(problems)
        raise FedBMError(
            f"{len(problems)} of {count} images cannot be read as JPEG or PNG, the first is "
            f"{index.ids[first]} ({problems[first]}): repair or remove them, or use "
            'on_bad_file = "skip" (--on-bad-file skip)'
        )
    if not problems:
        return Decoded(images, index, ())
    good = np.array([i for i in range(count) if i not in problems], dtype=np.int64)
    return Decoded(images[good], index.select(good), tuple(index.ids[i] for i in sorted(problems)))
