"""HAM10000 in its published layout, with small images, and the real table if it is available."""

from __future__ import annotations

import csv
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from pictures import SHARED, read_at, save, scan, shades

from fedbm.data.catalog.entries import CATALOG
from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.data.splits import find_shared_groups
from fedbm.errors import FedBMError

HEAD = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]
CLASSES = tuple(CATALOG["ham10000"].classes)


def rows(lesions: int = 4) -> list[list[str]]:
    """Return some lesions of each diagnosis; every second lesion has two images."""
    made: list[list[str]] = []
    for dx in CLASSES:
        for i in range(lesions):
            lesion = f"HAM_{dx}{i}"
            made += [
                [lesion, f"ISIC_{len(made) + more:07d}", dx, "histo", "80.0", "male", "scalp"]
                for more in range(1 + i % 2)
            ]
    return made


def make(root: Path, table: list[list[str]], name: str = "HAM10000_metadata.csv", delimiter: str = ",") -> Path:
    for shade, row in enumerate(table):
        save(root / f"HAM10000_images_part_{1 + shade % 2}" / f"{row[1]}.jpg", shade)
    with (root / name).open("w", newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([HEAD, *table])
    return root


def test_two_folders_and_a_table_become_samples_with_columns(tmp_path) -> None:
    table = rows()
    decoded = read_at(make(tmp_path, table))
    index = decoded.index
    assert index.classes == CLASSES
    assert [index.classes[label] for label in index.labels] == [row[2] for row in table]
    assert index.ids[0] == "ISIC_0000000.jpg"
    assert index.columns["lesion_id"].tolist() == [row[0] for row in table]
    assert {name: set(values) for name, values in index.columns.items() if name != "lesion_id"} == {
        "dx_type": {"histo"},
        "age": {"80.0"},
        "sex": {"male"},
        "localization": {"scalp"},
    }
    assert shades(decoded) == list(range(len(table)))


@pytest.mark.parametrize(("name", "delimiter"), [("HAM10000_metadata", ","), ("HAM10000_metadata.tab", "\t")])
def test_other_names_of_the_table_are_accepted(tmp_path, name, delimiter) -> None:
    assert scan(make(tmp_path, rows(), name, delimiter)).classes == CLASSES


def test_an_archive_is_read_like_a_folder(tmp_path) -> None:
    make(tmp_path / "HAM", rows())
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as file:
        for path in (tmp_path / "HAM").rglob("*"):
            file.write(path, path.relative_to(tmp_path))
    assert shades(read_at(tmp_path / "archive.zip")) == shades(read_at(tmp_path / "HAM"))


def test_an_empty_table_in_an_archive_is_refused(tmp_path) -> None:
    make(tmp_path / "HAM", rows())
    (tmp_path / "HAM" / "HAM10000_metadata.csv").write_bytes(b"")
    with tarfile.open(tmp_path / "archive.tar", "w") as file:
        file.add(tmp_path / "HAM", "HAM")
    with pytest.raises(FedBMError, match=r"HAM10000_metadata.csv in .*archive.tar has no rows"):
        detect(tmp_path / "archive.tar")


def test_lesions_are_not_separated_by_the_split(tmp_path) -> None:
    data = load(make(tmp_path / "ham", rows(10)), size=16, cache=tmp_path / "cache")
    assert data.name == "ham10000"
    assert np.abs(data.counts() - [[10.5], [1.5], [3]]).max() <= 0.5  # 15 images of each class
    assert np.abs(data.counts().sum(axis=1) - [73.5, 10.5, 21]).max() <= 0.5
    assert find_shared_groups(data.split, data.columns["lesion_id"]) == []
    assert "do not contain DermaMNIST's published split" in data.notes[0]
    assert "each of the 70 values of lesion_id is in one subset" in data.notes[1]


def change(table: list[list[str]], row: int, column: str, value: str) -> list[list[str]]:
    table[row][HEAD.index(column)] = value
    return table


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (change(rows(), 3, "dx", "Mel"), "the diagnoses akiec, .*, vasc, but it has .* the diagnoses Mel, akiec, bcc"),
        (change(rows(), 3, "image_id", "ISIC_0000000"), 'contains the sample ".*ISIC_0000000.jpg" twice'),
        (
            [row for row in rows() if row[2] != "df"],
            "but it has .* the diagnoses akiec, bcc, bkl, mel, nv, vasc: download",
        ),
    ],
)
def test_wrong_tables_are_refused(tmp_path, table, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        detect(make(tmp_path, table))


def test_a_second_copy_of_the_images_is_not_read(tmp_path) -> None:
    """As in archives that contain every folder of images twice."""
    once = load(make(tmp_path / "once", rows(10)), size=16, cache=tmp_path / "cache")
    root = make(tmp_path / "twice", rows(10))
    shutil.copytree(root / "HAM10000_images_part_1", root / "ham10000_images_part_1")
    twice = load(root, size=16, cache=tmp_path / "cache")
    assert twice.checksum == once.checksum
    assert twice.ids.tolist() == once.ids.tolist()


def test_missing_images_and_columns_are_named(tmp_path) -> None:
    make(tmp_path, rows())
    (tmp_path / "HAM10000_images_part_2" / "ISIC_0000001.jpg").unlink()
    with pytest.raises(
        FedBMError,
        match=r"1 of the 42 images in .*HAM10000_metadata.csv in .* are missing in .*, the first is ISIC_0000001: add",
    ):
        detect(tmp_path)
    table = make(tmp_path, rows()) / "HAM10000_metadata.csv"
    table.write_text(table.read_text().replace("lesion_id", "lesion"))
    with pytest.raises(FedBMError, match="must have a column lesion_id .*, but it has the columns lesion, image_id"):
        detect(tmp_path)


@pytest.mark.skipif(
    not (SHARED / "ham10000_metadata.csv").exists(), reason="needs ../shared/data/ham10000_metadata.csv"
)
def test_the_published_split_shares_lesions_and_the_grouped_one_does_not(tmp_path) -> None:
    options = {"size": 16, "cache": tmp_path, "metadata": SHARED / "ham10000_metadata.csv"}
    published = load(SHARED / "ham10000_128.npz", **options)
    assert published.counts().sum(axis=1).tolist() == [7007, 1003, 2005]
    lesions = published.columns["lesion_id"]
    assert len(np.unique(lesions)) == 7470
    assert len(find_shared_groups(published.split, lesions)) == 1006
    assert published.notes[1:] == (
        "1006 of the 7470 values of lesion_id are in more than one of train, val and test of ham10000_128, so scores "
        'may be too high: split = "grouped" keeps each in one of them',
    )
    grouped = load(SHARED / "ham10000_128.npz", split="grouped", **options)
    assert find_shared_groups(grouped.split, lesions) == []
    assert np.abs(grouped.counts() - published.counts()).max() <= 2
    assert grouped.checksum != published.checksum
