"""What a data set holds, looked at before anything is trained on it: counts, pixels, twins, and warnings in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.data.inspection.duplicates import Pairs, find_exact_duplicates, find_near_duplicates
from fedbm.data.split_choice import find_group_columns
from fedbm.data.splits import SPLITS, find_shared_groups

FORMAT = 1
FEW = {"train": 10, "val": 5, "test": 5}  # images of a class on a side, below which the user is warned
IMBALANCE = 10  # times as many images as the smallest class
DARK = 64  # of 255: nothing brighter looks like values that were scaled wrongly
MOST_NAMED = 3  # in a sentence
MOST_LISTED = 100  # in the JSON

_CHUNK = 128  # images in memory at a time


@dataclass(frozen=True)
class Pixels:
    """Mean and standard deviation of each channel over training, in 0…1; the rest over all images, in 0…255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: int
    high: int
    constant: tuple[int, ...]  # samples of one colour throughout


@dataclass(frozen=True, eq=False)
class Inspection:
    """*exact* and *near* are pairs of samples, the first on the earlier side; *shared* are values on two sides."""

    dataset: Dataset
    pixels: Pixels
    exact: Pairs
    near: Pairs
    near_are_all: bool  # False: there are so many that not all were looked for
    shared: Mapping[str, Sequence[str]]

    @property
    def warnings(self) -> list[str]:
        return list(_warnings(self))

    def to_json(self) -> dict[str, Any]:
        data, counts = self.dataset, self.dataset.counts()
        return {
            "format": FORMAT,
            "name": data.name,
            "checksum": data.checksum,
            "shape": list(data.shape),
            "counts": {
                side: dict(zip(data.classes, row.tolist(), strict=True))
                for side, row in zip(SPLITS, counts, strict=True)
            },
            "pixels": {
                "mean": list(self.pixels.mean),
                "std": list(self.pixels.std),
                "range": [self.pixels.low, self.pixels.high],
                "constant_share": len(self.pixels.constant) / len(data.labels),
            },
            "twins": {
                "exact": _twins_json(data, self.exact),
                "near": {**_twins_json(data, self.near), "are_all": self.near_are_all},
            },
            "on_two_sides": {column: len(values) for column, values in self.shared.items()},
            "warnings": self.warnings,
            "notes": list(data.notes),
        }


def inspect(dataset: Dataset) -> Inspection:
    """Look at every image. 17,000 of 128 pixels take about 5 seconds."""
    exact = find_exact_duplicates(dataset.images, dataset.split)
    near, near_are_all = find_near_duplicates(dataset.images, dataset.split, exact[:, 1])
    return Inspection(
        dataset=dataset,
        pixels=pixel_statistics(dataset.images, dataset.split),
        exact=exact,
        near=near,
        near_are_all=near_are_all,
        shared={column: _on_two_sides(dataset.split, values) for column, values in dataset.columns.items()},
    )


def _on_two_sides(split: NDArray[np.uint8], values: NDArray[np.str_]) -> list[str]:
    known = values != ""
    return find_shared_groups(split[known], values[known])


def pixel_statistics(images: NDArray[np.uint8], split: NDArray[np.uint8]) -> Pixels:
    """From a histogram of each channel, so that sums are exact."""
    channels = images.shape[3]
    seen = np.zeros((2, channels, 256), dtype=np.int64)  # outside training, in training
    constant: list[int] = []
    for start in range(0, len(images), _CHUNK):
        some, trains = images[start : start + _CHUNK], split[start : start + _CHUNK] == 0
        for training in (False, True):
            for channel in range(channels):
                seen[int(training), channel] += np.bincount(
                    some[trains == training, ..., channel].ravel(), minlength=256
                )
        plain = (some == some[:, :1, :1]).all(axis=(1, 2, 3))
        constant += (start + np.flatnonzero(plain)).tolist()
    values, weights = np.arange(256) / 255, seen[1] / seen[1].sum(axis=1, keepdims=True)
    mean = weights @ values
    variance = (weights * (values - mean[:, None]) ** 2).sum(axis=1)
    present = np.flatnonzero(seen.sum(axis=(0, 1)))
    return Pixels(
        mean=tuple(mean.tolist()),
        std=tuple(np.sqrt(variance).tolist()),
        low=int(present[0]),
        high=int(present[-1]),
        constant=tuple(constant),
    )


def pairs_across_splits(split: NDArray[np.uint8], pairs: Pairs) -> Pairs:
    """The pairs on two sides of the split: what is scored was, all but, trained on."""
    return np.asarray(pairs[split[pairs[:, 0]] != split[pairs[:, 1]]])


def sample_name(dataset: Dataset, sample: int) -> str:
    return str(dataset.ids[sample]) if len(dataset.ids) else f"sample {sample}"


def _warnings(found: Inspection) -> Iterator[str]:
    data, counts = found.dataset, found.dataset.counts()
    for side, few, row in zip(FEW, FEW.values(), counts, strict=True):
        rare = [f"{data.classes[k]} ({row[k]})" for k in np.argsort(row, kind="stable") if row[k] < few]
        if rare:
            yield f"{_counted(len(rare), 'class has', 'classes have')} fewer than {few} {side} images: {_some(rare)}"
    train = counts[0]
    if train.max() >= IMBALANCE * train.min():
        most, least = data.classes[train.argmax()], data.classes[train.argmin()]
        yield (
            f"{most} has {train.max() / train.min():.0f} times the training images of {least}: "
            "look at macro-F1, for accuracy hides rare classes"
        )
    if found.pixels.high < DARK:
        yield f"no pixel is brighter than {found.pixels.high} of 255: were the values scaled as they should be?"
    if found.pixels.constant:
        names = [sample_name(data, sample) for sample in found.pixels.constant]
        yield f"{_counted(len(names), 'image is', 'images are')} of one colour throughout: {_some(names)}"
    for pairs, sign, how in ((found.exact, "=", "are the same pixel for pixel"), (found.near, "≈", "look alike")):
        if len(crossing := pairs_across_splits(data.split, pairs)):
            names = [f"{_placed(data, second)} {sign} {_placed(data, first)}" for first, second in crossing.tolist()]
            yield f"{_counted(len(names), 'pair', 'pairs')} of images on two sides of the split {how}: {_some(names)}"
    if not found.near_are_all:
        yield "very many images look alike, as frames of one film do: only some pairs of them were compared"
    for column in find_group_columns(data.columns):
        if shared := found.shared[column]:
            values = _counted(len(shared), "value", "values")
            yield f"{values} of {column} on two sides of the split, so scores may be too good: {_some(shared)}"
    torn = found.exact[data.labels[found.exact[:, 0]] != data.labels[found.exact[:, 1]]]
    if len(torn):
        labelled = [
            [f"{sample_name(data, i)} ({data.classes[data.labels[i]]})" for i in pair] for pair in torn.tolist()
        ]
        names = [" and ".join(pair) for pair in labelled]
        yield f"{_counted(len(names), 'picture carries', 'pictures carry')} two labels: {_some(names)}"


def _placed(data: Dataset, sample: int) -> str:
    return f"{sample_name(data, sample)} ({SPLITS[data.split[sample]]})"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _twins_json(data: Dataset, pairs: Pairs) -> dict[str, Any]:
    crossing = pairs_across_splits(data.split, pairs)
    return {
        "pairs": len(pairs),
        "across_splits": len(crossing),
        "first_across": [
            [{"id": sample_name(data, sample), "split": SPLITS[data.split[sample]]} for sample in pair]
            for pair in crossing[:MOST_LISTED].tolist()
        ],
    }
