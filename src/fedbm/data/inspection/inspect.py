"""Inspect a data set before training: counts, pixel statistics, duplicate images, warnings and a contact sheet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.data.inspection.duplicates import Pairs, find_exact_duplicates, find_near_duplicates
from fedbm.data.inspection.problems import choose_samples, find_problems
from fedbm.data.splits import SPLITS, find_group_columns, find_shared_groups
from fedbm.errors import shorten_list
from fedbm.utils.io import atomic_write

FORMAT = 1
MIN_IMAGES = {"train": 10, "val": 5, "test": 5}  # warn if a class has fewer
MAX_IMBALANCE = 10  # warn if the largest class has this many times the images of the smallest
MAX_NAMED = 3  # samples or classes in a sentence
MAX_LISTED = 100  # pairs in the JSON
SHEET_COLUMNS = 8  # images of a class on the contact sheet
SHEET_GAP = 3  # pixels
MIN_SHEET_CELL = 64  # pixels: smaller images are enlarged

_CHUNK = 128  # images in memory at a time


@dataclass(frozen=True)
class Pixels:
    """Pixel statistics."""

    mean: tuple[float, ...]  # of each channel over training images, in 0…1
    std: tuple[float, ...]
    low: int  # over all images, in 0…255
    high: int
    constant: tuple[int, ...]  # samples with a single colour


@dataclass(frozen=True, eq=False, repr=False)
class Inspection:
    """The result of inspect().

    Attributes:
        dataset: the data set.
        pixels: pixel statistics.
        exact: pairs of samples with equal pixels, [m,2].
        near: pairs of samples that look the same, [m,2].
        near_complete: whether the search for *near* was complete; False if there are too many pairs.
        shared: column → values that are in more than one of train, val and test.
    """

    dataset: Dataset
    pixels: Pixels
    exact: Pairs
    near: Pairs
    near_complete: bool
    shared: Mapping[str, Sequence[str]]

    @property
    def warnings(self) -> list[str]:
        """Sentences about problems that may spoil training or scores."""
        return list(_find_warnings(self))

    def __repr__(self) -> str:
        """Return a line for each measurement and each warning."""
        data, pixels = self.dataset, self.pixels
        mean, std = (" ".join(f"{value:.3f}" for value in values) for values in (pixels.mean, pixels.std))
        constant = 100 * len(pixels.constant) / len(data.labels)
        lines = [
            f"pixels: mean {mean}, standard deviation {std} over training (0 to 1); values {pixels.low} to "
            f"{pixels.high}; {constant:.1f} % of images have only one colour"
        ]
        for pairs, kind in ((self.exact, "equal"), (self.near, "nearly equal")):
            crossing = len(pairs_across_splits(data.split, pairs))
            lines.append(f"duplicates: {len(pairs)} pairs of {kind} images, {crossing} of them in different subsets")
        for column, values in self.shared.items():
            known = np.unique(data.columns[column][data.columns[column] != ""])
            lines.append(f"{column}: {len(values)} of {len(known)} values are in more than one subset")
        return "\n".join([*lines, *(f"warning: {sentence}" for sentence in self.warnings)])

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        data, counts = self.dataset, self.dataset.counts()
        return {
            "format": FORMAT,
            "name": data.name,
            "checksum": data.checksum,
            "shape": list(data.shape),
            "counts": {
                subset: dict(zip(data.classes, row.tolist(), strict=True))
                for subset, row in zip(SPLITS, counts, strict=True)
            },
            "pixels": {
                "mean": list(self.pixels.mean),
                "std": list(self.pixels.std),
                "range": [self.pixels.low, self.pixels.high],
                "constant_share": len(self.pixels.constant) / len(data.labels),
            },
            "duplicates": {
                "exact": _duplicates_json(data, self.exact),
                "near": {**_duplicates_json(data, self.near), "complete": self.near_complete},
            },
            "shared_values": {column: len(values) for column, values in self.shared.items()},
            "warnings": self.warnings,
            "notes": list(data.notes),
        }


def inspect(dataset: Dataset) -> Inspection:
    """Inspect every image of a data set. 17,000 images of 128 pixels take less than 10 seconds.

    Args:
        dataset: the data set.

    Returns:
        Counts, pixel statistics and duplicates. Print it, or write `.to_json()`.

    Example:
        >>> import fedbm
        >>> fedbm.inspect(fedbm.load("digits")).warnings[0][:44]
        'pairs of nearly equal images in different su'
    """
    exact = find_exact_duplicates(dataset.images, dataset.split)
    near, near_complete = find_near_duplicates(dataset.images, dataset.split, exact[:, 1])
    pixels = measure_pixels(dataset.images, dataset.split)
    shared = {column: find_shared_groups(dataset.split, values) for column, values in dataset.columns.items()}
    return Inspection(dataset, pixels, exact, near, near_complete, shared)


def measure_pixels(images: NDArray[np.uint8], split: NDArray[np.uint8]) -> Pixels:
    """Compute the statistics from a histogram of each channel, because its sums are exact."""
    histogram = np.zeros((images.shape[3], 256), dtype=np.int64)
    constant: list[int] = []
    for start in range(0, len(images), _CHUNK):
        some = images[start : start + _CHUNK]
        training = some[split[start : start + _CHUNK] == 0]
        for channel in range(len(histogram)):
            histogram[channel] += np.bincount(training[..., channel].ravel(), minlength=256)
        plain = (some == some[:, :1, :1]).all(axis=(1, 2, 3))
        constant += (start + np.flatnonzero(plain)).tolist()
    values, weights = np.arange(256) / 255, histogram / histogram.sum(axis=1, keepdims=True)
    mean = weights @ values
    std = np.sqrt((weights * (values - mean[:, None]) ** 2).sum(axis=1))
    return Pixels(tuple(mean.tolist()), tuple(std.tolist()), int(images.min()), int(images.max()), tuple(constant))


def pairs_across_splits(split: NDArray[np.uint8], pairs: Pairs) -> Pairs:
    """Return the pairs in different subsets, which leak training images into the test."""
    return np.asarray(pairs[split[pairs[:, 0]] != split[pairs[:, 1]]])


def _find_warnings(found: Inspection) -> Iterator[str]:
    data, counts = found.dataset, found.dataset.counts()
    for (subset, least), row in zip(MIN_IMAGES.items(), counts, strict=True):
        rare = [f"{data.classes[k]} ({row[k]})" for k in np.argsort(row, kind="stable") if row[k] < least]
        yield from _list_items(f"classes with fewer than {least} {subset} images", rare)
    train = counts[0]
    if train.max() >= MAX_IMBALANCE * train.min():
        most, least = data.classes[train.argmax()], data.classes[train.argmin()]
        yield (
            f"{most} has {train.max() / train.min():.0f} times the training images of {least}: "
            "use macro-F1, because accuracy hides rare classes"
        )
    yield from _list_items("images with a single colour", data.ids[list(found.pixels.constant)].tolist())
    for pairs, sign, kind in ((found.exact, "=", "duplicate"), (found.near, "≈", "nearly equal")):
        crossing = pairs_across_splits(data.split, pairs).tolist()
        named = [[f"{data.ids[i]} ({SPLITS[data.split[i]]})" for i in pair] for pair in crossing]
        names = [f"{copy} {sign} {first}" for first, copy in named]
        yield from _list_items(f"pairs of {kind} images in different subsets", names)
    if not found.near_complete:
        yield "very many images look the same, like frames of a video, so only some pairs were compared"
    for column in find_group_columns(data.columns):
        what = f"values of {column} in more than one subset, so scores may be too high"
        yield from _list_items(what, found.shared[column])
    contradictory = found.exact[data.labels[found.exact[:, 0]] != data.labels[found.exact[:, 1]]]
    labels = [[f"{data.ids[i]} ({data.classes[data.labels[i]]})" for i in pair] for pair in contradictory]
    yield from _list_items("images with two labels", [" and ".join(pair) for pair in labels])
    yield from find_problems(data, concepts=data.concepts)


def _list_items(what: str, items: Sequence[str]) -> Iterator[str]:
    """Yield a sentence that names the first items, if there are any."""
    if items:
        yield f"{what}: {shorten_list(items, MAX_NAMED)}"


def _duplicates_json(data: Dataset, pairs: Pairs) -> dict[str, Any]:
    crossing = pairs_across_splits(data.split, pairs)
    return {
        "pairs": len(pairs),
        "across_splits": len(crossing),
        "first_across": [
            [{"id": str(data.ids[sample]), "split": SPLITS[data.split[sample]]} for sample in pair]
            for pair in crossing[:MAX_LISTED].tolist()
        ],
    }


def save_contact_sheet(path: Path, dataset: Dataset) -> None:
    """Write a PNG with a row per class: its name and up to eight training images, always the same ones."""
    from PIL import Image, ImageDraw, ImageFont

    size = dataset.shape[1]
    cell = size * max(1, -(-MIN_SHEET_CELL // size))
    step = cell + SHEET_GAP
    font = ImageFont.load_default(max(12, cell // 8))
    names = [" ".join(name.split()) for name in dataset.classes]  # names may contain line breaks
    left = 2 * SHEET_GAP + int(max(map(font.getlength, names)))
    sheet = Image.new("RGB", (left + SHEET_COLUMNS * step, SHEET_GAP + len(names) * step), "white")
    draw = ImageDraw.Draw(sheet)
    for label, name in enumerate(names):
        top = SHEET_GAP + label * step
        draw.text((SHEET_GAP, top + cell // 2), name, "black", font, anchor="lm")
        for column, sample in enumerate(choose_samples(dataset, label, SHEET_COLUMNS)):
            image = Image.fromarray(np.squeeze(dataset.images[sample]))
            sheet.paste(image.resize((cell, cell), Image.Resampling.NEAREST), (left + column * step, top))
    with atomic_write(path) as temporary:
        sheet.save(temporary, format="PNG")
