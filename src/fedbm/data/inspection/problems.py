"""Find problems of a data set that training does not notice, but that spoil its result or waste time.

Pixels are read from a sample of training images, at most 16 of each class and about 512 in all, so that a run can call
this every time it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from fedbm.data.catalog.entries import CATALOG, describe_wordless
from fedbm.data.dataset import Dataset
from fedbm.data.splits import find_group_columns
from fedbm.errors import join_words, shorten_list

MAX_SAMPLES_PER_CLASS = 16
MAX_SAMPLES = 512
MAX_GREY_SPREAD = 2.0  # mean difference between channels: a grey image saved as a colour JPEG is not exactly grey
MIN_SHARE_GAP = 0.5  # warn if the shares of grey images of two classes differ by this much
MIN_LEVELS = 64  # of 256: 12-bit values in 16-bit files become 16 levels, 14-bit values 64
MAX_SIZE_FOR_3X3 = 32  # pixels: the 7x7 stem and the stages after it divide the size by 32
MAX_NAMED = 3  # classes in a sentence
# as programs write a missing value; a person may call a class "none", and "Na" is sodium
MISSING = ("#N/A", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")


def find_problems(dataset: Dataset, *, concepts: Sequence[str] = (), stem: str = "7x7") -> list[str]:
    """Return a sentence for each problem: what is wrong, where, and what to do.

    *concepts* are the classes' texts if the method reads them, and *stem* is the model's first layer ("" for a user's
    own model).
    """
    return [
        *_check_pixels(dataset),
        *_check_class_names(dataset.classes),
        *_check_missing(dataset),
        *describe_wordless(dataset.classes, concepts),
        *_check_stem(dataset.shape[1], stem),
    ]


def _check_pixels(dataset: Dataset) -> Iterator[str]:
    most = max(2, min(MAX_SAMPLES_PER_CLASS, MAX_SAMPLES // len(dataset.classes)))
    step = max(1, dataset.shape[1] // 32)  # pixels: some of a large image are enough
    count, low, high, grey = 0, 255, 0, []
    for label in range(len(dataset.classes)):
        some = dataset.images[choose_samples(dataset, label, most), ::step, ::step]
        count, low, high = count + len(some), min(low, int(some.min())), max(high, int(some.max()))
        spread = (some.max(axis=3) - some.min(axis=3)).mean(axis=(1, 2))
        grey.append(float((spread <= MAX_GREY_SPREAD).mean()))
    if high - low < MIN_LEVELS:
        yield (
            f"the values of {count} sampled images are only {low} to {high} of 255, so at most {high - low + 1} grey "
            "levels remain: check how they were scaled, and set --value-range for 16-bit and DICOM files"
        )
    if dataset.shape[0] != 3:
        return
    most_grey, least_grey = int(np.argmax(grey)), int(np.argmin(grey))
    if grey[most_grey] - grey[least_grey] >= MIN_SHARE_GAP:
        yield (
            f'{grey[most_grey]:.0%} of the sampled images of class "{dataset.classes[most_grey]}" are grey, but '
            f'{grey[least_grey]:.0%} of class "{dataset.classes[least_grey]}", so colour reveals the class: use '
            "channels = 1 (--channels 1), or images from the same devices"
        )
    elif min(grey) == 1 and dataset.name not in CATALOG:
        yield (
            f"all {count} sampled images are grey, but they are read as 3 channels: use channels = 1 (--channels 1), "
            "which needs a third of the memory"
        )


def _check_class_names(classes: Sequence[str]) -> Iterator[str]:
    same: dict[str, list[str]] = {}
    for name in classes:
        same.setdefault(re.sub(r"[\s_-]", "", name.casefold()), []).append(f'"{name}"')
    pairs = [join_words(names, "and") for key, names in same.items() if len(names) > 1 and len(key) > 1]
    if pairs:  # "A" and "a" are different letters
        yield f"classes differ only by case or spaces ({shorten_list(pairs, MAX_NAMED)}): give each class one name"


def _check_missing(dataset: Dataset) -> Iterator[str]:
    groups = {key: set(dataset.columns[key].tolist()) for key in find_group_columns(dataset.columns)}
    for key, values in {"label": set(dataset.classes), **groups}.items():
        for value in sorted(values.intersection(MISSING)):
            yield f'the {key} of some images is "{value}": if this means that it is missing, fill it in, or remove them'


def _check_stem(size: int, stem: str) -> Iterator[str]:
    if stem == "7x7" and size <= MAX_SIZE_FOR_3X3:
        yield (
            f"images of {size} pixels are small for the 7x7 stem, which reduces them to one pixel: stem = 3x3 "
            "(--stem 3x3) keeps more detail, but takes longer"
        )


def choose_samples(dataset: Dataset, label: int, most: int) -> list[int]:
    """Return up to *most* training samples of a class, from first to last in equal steps."""
    train = dataset.indices("train")
    members = train[dataset.labels[train] == label]
    positions = np.linspace(0, len(members) - 1, min(most, len(members))).round().astype(np.int64)
    return [int(sample) for sample in members[positions]]
