"""Common mistakes in data: each error says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pictures import FLAT, cut_jpeg, flat_folder, make_zip, png, save, split_folder

from fedbm.data.dataset import load
from fedbm.errors import FedBMError


def empty_folder(root: Path) -> Path:
    root.mkdir()
    return root


def one_class(root: Path) -> Path:
    for i in range(5):
        save(root / "cat" / f"{i}.png")
    return root


def unreadable_file(root: Path) -> Path:
    (flat_folder(root) / "cat" / "3.jpg").write_bytes(cut_jpeg())
    return root


def unknown_label(root: Path) -> Path:
    arrays = {f"{side}_images": np.zeros((9, 28, 28), dtype=np.uint8) for side in ("train", "val", "test")}
    arrays |= {f"{side}_labels": np.arange(9, dtype=np.uint8)[:, None] for side in ("train", "val", "test")}
    np.savez(root.with_name("bloodmnist.npz"), **arrays)
    return root.with_name("bloodmnist.npz")


def duplicate_ids(root: Path) -> Path:
    rows = [f"{name}/{i}.png,{name}" for name in ("cat", "dog") for i in range(3)]
    (flat_folder(root) / "t.csv").write_text("\n".join(["path,label", *rows, rows[4]]))
    return root / "t.csv"


def wrong_split_name(root: Path) -> Path:
    return split_folder(root, "train", "validate", "test")


def wrong_split_value(root: Path) -> Path:
    rows = [
        f"{name}/{i}.png,{name},{side}" for name in ("cat", "dog") for i, side in enumerate(("train", "tset", "val"))
    ]
    (flat_folder(root) / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    return root / "t.csv"


def zip_that_points_outside(root: Path) -> Path:
    return make_zip(root.with_suffix(".zip"), FLAT | {"../../evil.png": png()})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            empty_folder,
            "Клиника é should contain one folder of images per class, .* but it has 0 images in such folders",
        ),
        (one_class, r"Клиника é has 1 class \(cat\), but at least 2 are needed"),
        (
            unreadable_file,
            r'1 of 7 images cannot be read, .* cat/3.jpg \(.*\): use JPEG, .* or use on_bad_file = "skip"',
        ),
        (unknown_label, "bloodmnist.npz has the wrong content: the labels 0 to 8 are not from 0 to 7"),
        (duplicate_ids, 't.csv contains the sample "dog/1.png" twice: names must be unique, so remove one'),
        (
            wrong_split_name,
            r'has the folders test, train, validate \(did you mean "validation"\?\): it should contain one train',
        ),
        (
            wrong_split_value,
            r'row 2 of .* has the split "tset" \(did you mean "test"\?\), but it must be train, val or test',
        ),
        (zip_that_points_outside, 'has a member "../../evil.png" outside of the archive: do not trust it'),
    ],
)
def test_a_mistake_gives_a_one_line_error(tmp_path, make: Callable[[Path], Path], sentence) -> None:
    with pytest.raises(FedBMError, match=sentence) as caught:
        load(make(tmp_path / "Клиника é"), size=16, cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_names_in_any_script_are_accepted(tmp_path) -> None:
    for name in ("Невус", "メラノーマ"):
        for i in range(3):
            save(tmp_path / "Клиника é" / name / f"снимок {i}.png")
    data = load(tmp_path / "Клиника é", size=16, cache=tmp_path / "cache")
    assert (data.name, data.classes) == ("Клиника é", ("Невус", "メラノーマ"))
    assert data.ids[0] == "Невус/снимок 0.png"
