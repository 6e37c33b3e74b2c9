"""Find images that are smaller than the run's size. Enlarging them costs time and adds no information."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from fedbm.data.readers.sample_index import Encoded, Frame, SampleIndex

MEASURED_IMAGES = 64  # of a source


def watch_sizes(index: SampleIndex, sides: list[int]) -> SampleIndex:
    """Return *index* with a stream that appends the longer side of some of its images to *sides*."""
    step = -(-len(index.ids) // MEASURED_IMAGES)

    def stream() -> Iterator[tuple[int, Encoded | Frame]]:
        for i, encoded in index.stream():
            if i % step == 0 and not isinstance(encoded, Frame):
                with suppress(Exception):  # damaged files raise many kinds of errors, and decoding reports them
                    sides.append(read_side(encoded))
            yield i, encoded

    return replace(index, stream=stream)


def read_side(encoded: Encoded) -> int:
    """Return the longer side of an image in pixels, without decoding it."""
    from PIL import Image

    source = encoded() if callable(encoded) else encoded
    if isinstance(source, np.ndarray):
        return int(max(source.shape[:2]))
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        return max(image.size)


def round_up_size(side: int) -> int:
    """Return the smallest supported image size that is not below *side*."""
    return max(16, -(-side // 4) * 4)


def describe_enlarging(name: str, sides: Sequence[int], size: int) -> Iterator[str]:
    """Yield a note if images with these longer *sides* were enlarged to *size*."""
    if sides and round_up_size(max(sides)) < size:
        better = round_up_size(max(sides))
        yield (
            f"the images of {name} were enlarged from at most {max(sides)} to {size} pixels: size = {better} "
            f"(--size {better}) saves memory and time"
        )
