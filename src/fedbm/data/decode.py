"""Decode images in parallel into one uint8 array [n, size, size, channels].

The array must fit into memory: 10,000 colour images of 128 pixels need 0.5 GB.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbm.data.readers.dicom import is_dicom, read_frame
from fedbm.data.readers.sample_index import Encoded, Frame, SampleIndex
from fedbm.errors import FedBMError

BadFiles = Literal["refuse", "skip"]
Progress = Callable[[int, int], None]  # (images done, images in total)
ValueRange = tuple[float, ...]  # grey values that become black and white; empty: the usual ones

MAX_16_BIT = 2**16 - 1

_MODES = {1: "L", 3: "RGB"}
_FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "WEBP")
_BATCH = 32  # images per thread
# of an image in its file: longer side, pages, and whether its grey values were scaled to 8 bits
_TRAITS = np.dtype([("side", np.int64), ("pages", np.int64), ("is_scaled", np.bool_)])


@dataclass(frozen=True)
class Decoded:
    """Decoded images and the index of their samples, without skipped ones."""

    images: NDArray[np.uint8]  # [n, H, W, C]
    index: SampleIndex
    checksum: str = ""  # of a prepared copy; see cache.checksum()


class DecodeError(Exception):
    """The bytes are not a complete image."""


def decode_image(source: Encoded | Frame, size: int, channels: int, value_range: ValueRange = ()) -> NDArray[np.uint8]:
    """Return the image at size×size. Apply its EXIF orientation, and resample it only if its size differs.

    Grey values of more than 8 bits are scaled to 0…255: from *value_range* if it is given, in DICOM files from the
    file's window, otherwise from 0…65535.
    """
    with _ignore_warnings():
        return _decode(source, size, channels, value_range)[0]


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about images that it can read. This affects all threads: enter it only in one."""
    with warnings.catch_warnings():
        for category in (UserWarning, RuntimeWarning):
            warnings.filterwarnings("ignore", category=category, module=r"PIL\.")
        yield


def _decode(
    source: Encoded | Frame, size: int, channels: int, value_range: ValueRange
) -> tuple[NDArray[np.uint8], tuple[int, int, bool]]:
    """Return the image and its _TRAITS."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    pages, is_scaled = 1, False
    try:
        number = None
        if isinstance(source, Frame):
            number, source = source.number, source.file
        if callable(source):
            source = source()
        if isinstance(source, np.ndarray):
            image = Image.fromarray(source)
        elif number is not None or is_dicom(source):
            pixels, ends = read_frame(source, number, value_range)
            image = Image.fromarray(_scale(pixels, *ends) if ends else pixels.astype(np.uint8))
            is_scaled = ends is not None
        else:
            content = io.BytesIO(source) if isinstance(source, bytes) else source
            with Image.open(content, formats=_FORMATS) as opened:
                # Decode a large JPEG at reduced size, but at least twice the target. A smaller size would be visible.
                opened.draft(None, (2 * size, 2 * size))
                pages = getattr(opened, "n_frames", 1) if opened.format == "TIFF" else 1
                image = ImageOps.exif_transpose(opened)
        if image.mode.startswith(("I", "F")):  # grey of 16 or 32 bits, which convert() would clip at 255
            values = np.asarray(image)
            low, high = values.min(), values.max()
            usual = image.mode != "F" and low >= 0 and high <= MAX_16_BIT
            if not (np.isfinite([low, high]).all() if value_range else usual):
                raise DecodeError(
                    f"values from {low:g} to {high:g}, which need --value-range LOW,HIGH if they are numbers"
                )
            image = Image.fromarray(_scale(values, *value_range) if value_range else (values >> 8).astype(np.uint8))
            is_scaled = True
        side = max(image.size)
        if image.mode != _MODES[channels]:
            image = image.convert(_MODES[channels])
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(size, size, channels), (side, pages, is_scaled)
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise DecodeError("not an image") from error
    except Exception as error:  # damaged files raise many kinds of errors: OSError, SyntaxError, struct.error, …
        raise DecodeError(getattr(error, "strerror", None) or " ".join(str(error).split())) from error


def _scale(values: NDArray[Any], black: float, white: float) -> NDArray[np.uint8]:
    return np.rint(np.clip((values - float(black)) / (white - black), 0, 1) * 255).astype(np.uint8)


def decode_images(
    index: SampleIndex,
    size: int,
    channels: int,
    on_bad_file: BadFiles = "refuse",
    progress: Progress | None = None,
    value_range: ValueRange = (),
) -> Decoded:
    """Decode every sample. If one fails, raise FedBMError, or skip it with on_bad_file = "skip"."""
    count = len(index.ids)
    try:
        images = np.empty((count, size, size, channels), dtype=np.uint8)
    except MemoryError as error:
        raise FedBMError(f"{count} images of {size}×{size} do not fit into memory: use a smaller size") from error
    problems: dict[int, str] = {}
    traits = np.zeros(count, dtype=_TRAITS)

    def decode_one(sample: tuple[int, Encoded | Frame]) -> None:
        i, encoded = sample
        try:
            images[i], traits[i] = _decode(encoded, size, channels, value_range)
        except DecodeError as error:
            problems[i] = str(error)

    # Pillow releases the interpreter lock while decoding. Batches are small, so that little of the source is in memory.
    workers, stream, done = os.cpu_count() or 1, index.stream(), 0
    with _ignore_warnings(), ThreadPoolExecutor(workers) as pool:
        while batch := list(islice(stream, _BATCH * workers)):
            for _ in pool.map(decode_one, batch):  # an interruption cancels the rest of the batch
                done += 1
                if progress:
                    progress(done, count)
    if problems and on_bad_file == "refuse":
        raise FedBMError(
            f"{len(problems)} of {count} images cannot be read, the first is {index.ids[min(problems)]} "
            f"({problems[min(problems)]}): use JPEG, PNG, TIFF, BMP, WebP or DICOM, repair or remove them, or use "
            'on_bad_file = "skip" (--on-bad-file skip)'
        )
    if value_range and not traits["is_scaled"].any():
        raise FedBMError("value_range has no effect, because no image is grey with more than 8 bits: remove it")
    notes = list(index.notes)
    if index.catalog_name is None:  # some images of the catalogue are enlarged on purpose
        notes += describe_enlarging(int(traits["side"].max()), size)
    if several := int((traits["pages"] > 1).sum()):
        notes.append(f"TIFF files of which only the first page is used: {several}")
    if problems:
        notes.append(f"skipped unreadable images: {len(problems)}, the first is {index.ids[min(problems)]}")
        good = np.array([i for i in range(count) if i not in problems], dtype=np.int64)
        images, index = images[good], index.select(good)
    return Decoded(images, replace(index, notes=tuple(notes)))


def round_up_size(side: int) -> int:
    """Return the smallest supported image size that is not below *side*."""
    return max(16, -(-side // 4) * 4)


def describe_enlarging(side: int, size: int) -> Iterator[str]:
    """Yield a note if images with longer sides of at most *side* pixels were enlarged to *size*."""
    if (better := round_up_size(side)) < size:
        yield (
            f"images were enlarged from at most {side} to {size} pixels: size = {better} (--size {better}) saves "
            "memory and time"
        )
