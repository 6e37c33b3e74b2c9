"""Read handwritten characters by writer: FEMNIST as LEAF's json files, and its substitute Chars74K as an .npz file.

LEAF's files contain user_data {user: {x: [784 numbers each], y: [label each]}}. As in the paper, 50 writers are drawn;
35 of them train, 5 validate and 10 test. Only FEMNIST's users with fewer than 150 samples take part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.catalog.entries import CATALOG
from fedbm.data.readers.file_tree import Stamp
from fedbm.data.readers.npz import scan_pixels, usable_size
from fedbm.data.readers.sample_index import SampleIndex, Source, text_array
from fedbm.data.splits import SPLITS, allocate_counts
from fedbm.errors import FedBMError
from fedbm.utils.io import digest_of, read_json
from fedbm.utils.seeds import numpy_rng

LAYOUT = (
    "the json files of LEAF's FEMNIST, directly or inside train and test: user_data with x (square images of numbers "
    "from 0 to 1) and y (labels from 0 to 61) of each user"
)

MAX_SAMPLES = 150  # users with this many samples do not take part
MAX_WRITERS = 50
MAX_DRAWS = 100

UserData = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images [n, H, W] and labels


def find_leaf(stamp_of: Mapping[Path, Stamp], where: str, seed: int) -> Source:
    stamps = [[path.name, *stamp] for path, stamp in stamp_of.items()]
    known = digest_of({"source": "LEAF", "files": stamps, "seed": seed})
    return Source(known, lambda: _scan_leaf(list(stamp_of), where, seed))


def _scan_leaf(files: Sequence[Path], where: str, seed: int) -> SampleIndex:
    classes = tuple(CATALOG["femnist"].classes)
    users = _read_users(files, len(classes))
    if len(users) < len(SPLITS):
        raise FedBMError(
            f"{where} has {len(users)} users with fewer than {MAX_SAMPLES} samples, but at least 3 are needed: "
            "one each for train, val and test"
        )
    labels_of = {user: labels for user, (_, labels) in users.items()}
    kind = f"writers with fewer than {MAX_SAMPLES} samples"
    drawn, subsets, note = _draw_writers(labels_of, len(classes), seed, kind)
    sizes = [len(users[user][1]) for user in drawn]
    images = [image for user in drawn for image in users[user][0]]
    return SampleIndex(
        classes=classes,
        labels=np.concatenate([users[user][1] for user in drawn]),
        split=np.repeat(subsets, sizes),
        ids=[f"{user}/{i}" for user, size in zip(drawn, sizes, strict=True) for i in range(size)],
        stream=lambda: enumerate(images),
        columns={"writer": text_array(np.repeat(drawn, sizes).tolist())},
        catalog_name="femnist",
        size=usable_size(*images[0].shape),
        channels=1,
        notes=(note,),
    )


def scan_chars74k(path: Path, seed: int) -> SampleIndex:
    found = scan_pixels(path)
    if found.classes != tuple(CATALOG["chars74k"].classes):
        return found
    writers = found.columns["writer"]
    labels_of = {writer: found.labels[writers == writer] for writer in np.unique(writers).tolist()}
    drawn, subsets, note = _draw_writers(labels_of, len(found.classes), seed, "writers")
    subset_of = dict(zip(drawn, subsets.tolist(), strict=True))
    kept = found.select(np.flatnonzero(np.isin(writers, drawn)))
    return replace(
        kept,
        split=np.array([subset_of[writer] for writer in kept.columns["writer"]], dtype=np.uint8),
        catalog_name="chars74k",
        notes=(note,),
    )


def _draw_writers(
    labels: Mapping[str, NDArray[np.int64]], classes: int, seed: int, kind: str
) -> tuple[list[str], NDArray[np.uint8], str]:
    """Return 50 writers drawn from *labels* (writer → labels of the samples), the subset of each, and a note.

    The first draw in which the training writers have written every class is used, or else the last draw.
    """
    for attempt in range(MAX_DRAWS):
        drawn = numpy_rng(seed, "writers", attempt).permutation(sorted(labels))[:MAX_WRITERS].tolist()
        subsets = np.repeat(np.arange(len(SPLITS), dtype=np.uint8), allocate_counts(len(drawn)))
        training = [labels[writer] for writer, subset in zip(drawn, subsets, strict=True) if subset == 0]
        if len(np.unique(np.concatenate(training))) == classes:
            break
    train, val, test = np.bincount(subsets)
    sizes = f"{train} for train, {val} for val, {test} for test"
    return drawn, subsets, f"{len(drawn)} of the {len(labels)} {kind} were drawn with seed {seed}: {sizes}"


def _read_users(files: Sequence[Path], classes: int) -> dict[str, UserData]:
    """Return images and labels of the users with few samples, merged over all files. Read one file at a time."""
    counts: dict[str, int] = {}
    parts: dict[str, list[UserData]] = {}
    for path in files:
        user = ""
        try:
            for user, data in read_json(path)["user_data"].items():
                counts[user] = counts.get(user, 0) + len(data["y"])
                if counts[user] >= MAX_SAMPLES:
                    parts.pop(user, None)
                elif data["y"]:
                    parts.setdefault(user, []).append(_parse_user(data["x"], data["y"], classes))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise FedBMError(f'{path} cannot be read at user "{user}": expected {LAYOUT}') from error
    return {
        user: (np.concatenate([images for images, _ in pairs]), np.concatenate([labels for _, labels in pairs]))
        for user, pairs in parts.items()
    }


def _parse_user(x: list[Any], y: list[Any], classes: int) -> UserData:
    pixels, labels = np.array(x, dtype=np.float64), np.array(y)
    side = math.isqrt(pixels.shape[1])
    in_range = (pixels >= 0).all() and (pixels <= 1).all() and np.isin(labels, np.arange(classes)).all()
    if pixels.shape != (len(labels), side * side) or labels.dtype.kind != "i" or not in_range:
        raise ValueError("not LEAF's layout")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, side, side), labels.astype(np.int64)
