"""The result of every reader: a source with a fingerprint, and the index of its samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbm.errors import FedBMError

# An image before decoding: its bytes, its file, a function that returns the bytes, or its pixels.
Encoded = bytes | Path | Callable[[], bytes] | NDArray[np.uint8]


@dataclass(frozen=True)
class Frame:
    """One image of a file that contains several."""

    file: Encoded
    number: int  # from 0


@dataclass(frozen=True)
class SampleIndex:
    """The samples of a source before decoding."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    split: NDArray[np.uint8] | None  # 0 train, 1 val, 2 test; None if the source has no split
    ids: Sequence[str]  # unique name of each sample
    stream: Callable[[], Iterator[tuple[int, Encoded | Frame]]]  # sample numbers and images, in the fastest order
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)  # per sample: site, writer, lesion, …
    catalog_name: str | None = None  # name in the catalogue; None if only the classes are known
    size: int | None = None  # size and channels of the images if all are equal
    channels: int | None = None
    notes: tuple[str, ...] = ()

    def select(self, kept: NDArray[np.int64]) -> SampleIndex:
        """Return the index of these samples only."""
        new = {int(old): i for i, old in enumerate(kept)}
        return replace(
            self,
            labels=self.labels[kept],
            split=None if self.split is None else self.split[kept],
            ids=[self.ids[i] for i in kept],
            stream=lambda: ((new[i], encoded) for i, encoded in self.stream() if i in new),
            columns={name: values[kept] for name, values in self.columns.items()},
        )


@dataclass(frozen=True)
class Source:
    """Data to read. *fingerprint* changes when the content changes, and is computed without reading all of it."""

    fingerprint: str
    scan: Callable[[], SampleIndex]


def load_bytes(encoded: Encoded) -> bytes:
    """Return the bytes of a file in a stream."""
    if isinstance(encoded, Path):
        return encoded.read_bytes()
    return bytes(encoded() if callable(encoded) else encoded)


def text_array(values: Sequence[object]) -> NDArray[np.str_]:
    return np.array([str(value) for value in values], dtype=np.str_)


def encode_labels(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return sorted classes and numeric labels. Class names that are whole numbers are sorted by value."""
    distinct = set(names)
    by_value = all(name.isascii() and name.isdecimal() for name in distinct)
    classes = tuple(sorted(distinct, key=lambda name: (int(name) if by_value else 0, name)))
    label_of = {name: label for label, name in enumerate(classes)}
    return classes, np.array([label_of[name] for name in names], dtype=np.int64)


def check_distinct(ids: Sequence[str], where: str) -> None:
    if repeated := [name for name, times in Counter(ids).items() if times > 1]:
        raise FedBMError(f'{where} contains the sample "{repeated[0]}" twice: names must be unique, so remove one')
