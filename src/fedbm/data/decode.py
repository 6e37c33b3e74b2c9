"""A index of encoded images → one uint8 array [n, size, size, channels], decoded in parallel.

The array must fit into memory: 10,000 colour images of 128 pixels are 0.5 GB.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.sample_index import Encoded, SampleIndex
from fedbm.errors import FedBMError

BadFiles = Literal["refuse", "skip"]
Progress = Callable[[int, int], None]  # (images done, images in all)

_MODES = {1: "L", 3: "RGB"}
_AHEAD = 16  # images read but not yet decoded, per thread: enough to keep all busy, little to hold in memory


@dataclass(frozen=True)
class Decoded:
    images: NDArray[np.uint8]  # [n, H, W, C]
    index: SampleIndex  # of these images: what could not be decoded is gone from it
    skipped: tuple[str, ...]  # the ids of that


class DecodeError(Exception):
    """These bytes are no image, or only part of one."""


def decode(source: Encoded, size: int, channels: int) -> NDArray[np.uint8]:
    """The image at size×size, turned as its EXIF orientation says; resampled only if its size differs."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        if callable(source):
            source = source()
        if isinstance(source, np.ndarray):
            image = Image.fromarray(source)
        else:
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
                if opened.format not in ("JPEG", "MPO", "PNG"):  # MPO: how some cameras wrap a JPEG
                    raise DecodeError(f"{opened.format}, not JPEG or PNG")
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
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise DecodeError("not an image") from error
    except Exception as error:  # damaged files raise nearly anything: OSError, SyntaxError, struct.error, …
        raise DecodeError(getattr(error, "strerror", None) or str(error)) from error


def decode_all(
    index: SampleIndex, size: int, channels: int, bad_files: BadFiles = "refuse", progress: Progress | None = None
) -> Decoded:
    """Decode every sample; what cannot be decoded is counted and refused, or skipped by name."""
    count = len(index.ids)
    try:
        images = np.empty((count, size, size, channels), dtype=np.uint8)
    except MemoryError as error:
        raise FedBMError(f"{count} images of {size}×{size} do not fit into memory: choose a smaller size") from error
    problems: dict[int, str] = {}

    def place(i: int, encoded: Encoded) -> None:
        try:
            images[i] = decode(encoded, size, channels)
        except DecodeError as error:
            problems[i] = str(error)

    _in_parallel(place, index, progress)
    if problems and bad_files == "refuse":
        first = min(problems)
        raise FedBMError(
            f"{len(problems)} of {count} images cannot be read as JPEG or PNG, the first is "
            f"{index.ids[first]} ({problems[first]}): mend or remove them, or say "
            'bad_files = "skip" (--bad-files skip)'
        )
    if not problems:
        return Decoded(images, index, ())
    good = np.array([i for i in range(count) if i not in problems], dtype=np.int64)
    return Decoded(images[good], index.only(good), tuple(index.ids[i] for i in sorted(problems)))


def _in_parallel(place: Callable[[int, Encoded], None], index: SampleIndex, progress: Progress | None) -> None:
    """Read the source in one thread, in its own order, and decode in all: Pillow does so without the interpreter lock.

    Only so many images are read ahead: beside the decoded ones, little of the source is in memory at a time.
    """
    count, done = len(index.ids), 0
    workers = os.cpu_count() or 1
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[None]] = deque()

    def finish_one() -> None:
        nonlocal done
        waiting.popleft().result()
        done += 1
        if progress:
            progress(done, count)

    try:
        for i, encoded in index.stream():
            waiting.append(pool.submit(place, i, encoded))
            if len(waiting) > _AHEAD * workers:
                finish_one()
        while waiting:
            finish_one()
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted, it stops at once
