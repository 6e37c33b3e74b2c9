"""LEAF's FEMNIST: json files of users, num_samples and user_data {user: {x: [784 numbers each], y: [label each]}}.

As in the paper: of the users with fewer than 150 samples 50 are drawn, and 35 of them train, 5 validate, 10 test.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.readers.femnist_writers import draw_writers
from fedbm.data.readers.file_tree import file_stamp, is_visible
from fedbm.data.readers.npz import usable_size
from fedbm.data.readers.sample_index import SampleIndex, Source, make_stream, text_array
from fedbm.data.splits import SPLITS, check_usable
from fedbm.errors import FedBMError
from fedbm.utils.io import digest_of, read_json

LAYOUT = "the json files of LEAF's FEMNIST (users, num_samples, user_data), directly or inside train and test"

FEWER_THAN = 150

Written = tuple[NDArray[np.uint8], NDArray[np.int64]]  # a user's images [n, H, W] and labels


def json_files(root: Path) -> list[Path]:
    """The files to merge, in the folder and in train and test; none if there are other folders, as images lie in."""
    places = [root, *(path for path in (root / "train", root / "test") if os.path.isdir(path))]
    inside = [path for place in places for path in place.iterdir() if path not in places]
    if any(path.is_dir() and is_visible(path.name) for path in inside):
        return []
    return sorted(path for path in inside if path.suffix.lower() == ".json")


def find(files: Sequence[Path], where: str, seed: int) -> Source:
    stamps = [[path.name, *file_stamp(path)] for path in files]
    return Source(digest_of({"source": "LEAF", "files": stamps, "seed": seed}), lambda: scan(files, where, seed))


def scan(files: Sequence[Path], where: str, seed: int) -> SampleIndex:
    classes = tuple(CATALOG["femnist"].classes)
    users = _users_with_few(files, len(classes))
    if len(users) < len(SPLITS):
        raise FedBMError(
            f"{where} has {len(users)} users with fewer than {FEWER_THAN} samples, it takes 3: "
            "one each to train, validate and test"
        )
    drawn, sides = draw_writers({user: labels for user, (_, labels) in users.items()}, len(classes), seed)
    sizes = [len(users[user][1]) for user in drawn]
    labels = np.concatenate([users[user][1] for user in drawn])
    split = np.repeat(sides, sizes)
    check_usable(labels, split, classes, where)
    images = [image for user in drawn for image in users[user][0]]
    train, val, test = np.bincount(sides)
    return SampleIndex(
        classes=classes,
        labels=labels,
        split=split,
        ids=[f"{user}/{i}" for user, size in zip(drawn, sizes, strict=True) for i in range(size)],
        stream=make_stream(images),
        columns={"writer": text_array(np.repeat(drawn, sizes).tolist())},
        known_as="femnist",
        size=usable_size(*images[0].shape),
        channels=1,
        notes=(
            f"{len(drawn)} of the {len(users)} writers with fewer than {FEWER_THAN} samples, drawn with seed {seed}: "
            f"{train} train, {val} validate, {test} test",
        ),
    )


def _users_with_few(files: Sequence[Path], classes: int) -> dict[str, Written]:
    """user → images and labels, merged over all files, of the users with few samples; one file in memory at a time."""
    counts: dict[str, int] = {}
    parts: dict[str, list[Written]] = {}
    for path in files:
        for user, data in _user_data(path).items():
            if not (isinstance(data, dict) and isinstance(data.get("x"), list) and isinstance(data.get("y"), list)):
                raise FedBMError(f'user "{user}" in {path} must have x and y, two lists; {LAYOUT} are read')
            counts[user] = counts.get(user, 0) + len(data["y"])
            if counts[user] >= FEWER_THAN:
                parts.pop(user, None)
            elif data["y"]:
                parts.setdefault(user, []).append(_written(path, user, data["x"], data["y"], classes))
    sides = {images.shape[1] for written in parts.values() for images, _ in written}
    if len(sides) > 1:
        raise FedBMError(f"images of {' and '.join(map(str, sorted(sides)))} pixels are mixed in {files[0].parent}")
    return {
        user: (np.concatenate([images for images, _ in written]), np.concatenate([labels for _, labels in written]))
        for user, written in parts.items()
    }


def _user_data(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or not isinstance(value.get("user_data"), dict):
        raise FedBMError(f"{path} has no user_data: {LAYOUT} are read")
    users: dict[str, Any] = value["user_data"]
    return users


def _written(path: Path, user: str, x: list[Any], y: list[Any], classes: int) -> Written:
    try:
        pixels, labels = np.array(x, dtype=np.float64), np.array(y)
    except (TypeError, ValueError) as error:
        raise FedBMError(f'x of user "{user}" in {path} are not images of equal size given as numbers') from error
    side = int(np.sqrt(pixels.shape[-1]))
    if pixels.ndim != 2 or len(pixels) != len(labels) or side * side != pixels.shape[1]:
        raise FedBMError(f'user "{user}" in {path} must have as many square images in x as labels in y')
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise FedBMError(f'x of user "{user}" in {path} holds values outside 0 to 1')
    if not np.issubdtype(labels.dtype, np.integer) or not ((labels >= 0) & (labels < classes)).all():
        raise FedBMError(f'y of user "{user}" in {path} holds a label that is no whole number from 0 to {classes - 1}')
    images = np.rint(pixels * 255).astype(np.uint8).reshape(-1, side, side)
    return images, labels.astype(np.int64)
