"""What every reader gives: a source known by its identity, and on demand the list of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbm.errors import FedBMError

# An image before it is decoded: its bytes, the file that holds it, how to get the bytes, or its pixels.
Encoded = bytes | Path | Callable[[], bytes] | NDArray[np.uint8]


@dataclass(frozen=True)
class SampleIndex:
    """The samples of a source before an image is decoded."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    split: NDArray[np.uint8] | None  # 0 train, 1 val, 2 test; None: still to be split
    ids: Sequence[str]  # what to call a sample when it is to be named, each once
    stream: Callable[[], Iterator[tuple[int, Encoded]]]  # every sample's number and image, as the source is best read
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)  # per sample: site, writer, lesion, …
    known_as: str | None = None  # the catalogued set that the source is; None: it goes by its classes
    size: int | None = None  # side and channels of the images, where the source is made of equal ones
    channels: int | None = None
    notes: tuple[str, ...] = ()

    def only(self, kept: NDArray[np.int64]) -> SampleIndex:
        """The index of these samples alone."""
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
    """Something to read. *identity* changes when the content does, and is found without reading all of it."""

    identity: str
    scan: Callable[[], SampleIndex]


def make_stream(images: Sequence[Encoded]) -> Callable[[], Iterator[tuple[int, Encoded]]]:
    """The stream of images that are at hand one by one."""
    return lambda: iter(enumerate(images))


def text_array(values: Sequence[object]) -> NDArray[np.str_]:
    return np.array([str(value) for value in values], dtype=np.str_)


def encode_labels(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """(classes, labels) of samples whose classes are given by name: classes in the order of their names.

    Names that are whole numbers stand in the order of the numbers: 2 before 10.
    """
    distinct = set(names)
    by_value = all(name.isascii() and name.isdecimal() for name in distinct)
    classes = tuple(sorted(distinct, key=lambda name: (int(name) if by_value else 0, name)))
    label_of = {name: label for label, name in enumerate(classes)}
    return classes, np.array([label_of[name] for name in names], dtype=np.int64)


def check_distinct(ids: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise FedBMError(f'{where} names the sample "{name}" twice: each needs a name of its own, so remove one')
        seen.add(name)
