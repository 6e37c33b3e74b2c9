"""Read LEAF's FEMNIST: json files with user_data {user: {x: [784 numbers each], y: [label each]}}.

As in the paper, 50 users with fewer than 150 samples are drawn; 35 of them train, 5 validate and 10 test.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.readers.femnist_writers import describe_draw, draw_writers
from fedbm.data.readers.file_tree import file_stamp, is_visible
from fedbm.data.readers.npz import usable_size
from fedbm.data.readers.sample_index import SampleIndex, Source, make_stream, text_array
from fedbm.data.splits import SPLITS, check_usable
from fedbm.errors import FedBMError
from fedbm.utils.io import digest_of, read_json

LAYOUT = "the json files of LEAF's FEMNIST (users, num_samples, user_data), directly or inside train and test"

MAX_SAMPLES = 150  # users with as many samples or more are left out

UserData = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images [n, H, W] and labels


def json_files(root: Path) -> list[Path]:
    """Return the files in the folder and in train and test, or [] if there are other folders, which contain images."""
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
    users = _read_users(files, len(classes))
    if len(users) < len(SPLITS):
        raise FedBMError(
            f"{where} has {len(users)} users with fewer than {MAX_SAMPLES} samples, but at least 3 are needed: "
            "one each for train, val and test"
        )
    drawn, subsets = draw_writers({user: labels for user, (_, labels) in users.items()}, len(classes), seed)
    sizes = [len(users[user][1]) for user in drawn]
    labels = np.concatenate([users[user][1] for user in drawn])
    split = np.repeat(subsets, sizes)
    check_usable(labels, split, classes, where)
    images = [image for user in drawn for image in users[user][0]]
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
        notes=(describe_draw(subsets, f"{len(users)} writers with fewer than {MAX_SAMPLES} samples", seed),),
    )


def _read_users(files: Sequence[Path], classes: int) -> dict[str, UserData]:
    """Return images and labels of the users with few samples, merged over all files; read one file at a time."""
    counts: dict[str, int] = {}
    parts: dict[str, list[UserData]] = {}
    for path in files:
        for user, data in _user_data(path).items():
            if not (isinstance(data, dict) and isinstance(data.get("x"), list) and isinstance(data.get("y"), list)):
                raise FedBMError(f'user "{user}" in {path} must have two lists x and y; expected {LAYOUT}')
            counts[user] = counts.get(user, 0) + len(data["y"])
            if counts[user] >= MAX_SAMPLES:
                parts.pop(user, None)
            elif data["y"]:
                parts.setdefault(user, []).append(_parse_user(path, user, data["x"], data["y"], classes))
    sizes = {images.shape[1] for user_parts in parts.values() for images, _ in user_parts}
    if len(sizes) > 1:
        raise FedBMError(f"images of {' and '.join(map(str, sorted(sizes)))} pixels are mixed in {files[0].parent}")
    return {
        user: (np.concatenate([images for images, _ in pairs]), np.concatenate([labels for _, labels in pairs]))
        for user, pairs in parts.items()
    }


def _user_data(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or not isinstance(value.get("user_data"), dict):
        raise FedBMError(f"{path} has no user_data: expected {LAYOUT}")
    users: dict[str, Any] = value["user_data"]
    return users


def _parse_user(path: Path, user: str, x: list[Any], y: list[Any], classes: int) -> UserData:
    try:
        pixels, labels = np.array(x, dtype=np.float64), np.array(y)
    except (TypeError, ValueError) as error:
        raise FedBMError(f'x of user "{user}" in {path} must be images of equal size given as numbers') from error
    side = int(np.sqrt(pixels.shape[-1]))
    if pixels.ndim != 2 or len(pixels) != len(labels) or side * side != pixels.shape[1]:
        raise FedBMError(f'user "{user}" in {path} must have as many square images in x as labels in y')
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise FedBMError(f'x of user "{user}" in {path} has values outside 0 to 1')
    if not np.issubdtype(labels.dtype, np.integer) or not ((labels >= 0) & (labels < classes)).all():
        raise FedBMError(f'y of user "{user}" in {path} has a label that is not a whole number from 0 to {classes - 1}')
    images = np.rint(pixels * 255).astype(np.uint8).reshape(-1, side, side)
    return images, labels.astype(np.int64)
