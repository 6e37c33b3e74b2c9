"""Folders of images: class/*.jpg or train|val|test/class/*.jpg."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pictures import cut_jpeg, flat_folder, read_at, save, scan, shades, split_folder

from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError


def test_a_folder_with_splits_is_read_in_order(tmp_path) -> None:
    for name in ("Train", "validation", "test"):
        save(tmp_path / name / "b" / "2.JPG", 200)
        save(tmp_path / name / "b" / "1.jpeg", 100)
        save(tmp_path / name / "a" / "x.PnG", 50)
    (tmp_path / "Train" / "b" / ".DS_Store").write_bytes(b"")
    (tmp_path / "Train" / "b" / "Thumbs.db").write_bytes(b"")
    (tmp_path / "readme.txt").write_text("about")
    decoded = read_at(tmp_path)
    index = decoded.index
    assert index.classes == ("a", "b")
    assert decoded.images.shape == (9, 16, 16, 3)
    assert index.labels.tolist() == [0, 1, 1] * 3
    assert index.split.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert index.ids[:3] == ["Train/a/x.PnG", "Train/b/1.jpeg", "Train/b/2.JPG"]
    assert shades(decoded)[:3] == pytest.approx([50, 100, 200], abs=1)
    assert index.notes == ("ignored files that are not images of a class: 1 (readme.txt)",)


def test_a_folder_of_classes_has_no_split(tmp_path) -> None:
    index = scan(flat_folder(tmp_path))
    assert index.classes == ("cat", "dog")
    assert index.split is None
    assert shades(read_at(tmp_path)) == [0, 1, 2, 100, 101, 102]


@pytest.mark.parametrize("names", [("cat", "dog"), ("train/cat", "test/cat")])
def test_what_commands_write_into_the_folder_is_not_a_class(tmp_path, names) -> None:
    """Whoever works in the folder of the images gets runs/ there, and the same command has to find the same data."""
    for name in names:
        save(tmp_path / name / "1.png")
    before = detect(tmp_path).fingerprint
    for path in ("runs/fedavg-x-s0/lock", "runs/fedavg-x-s0/clients/0.safetensors", "inspect-x/inspect.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    save(tmp_path / "inspect-x" / "samples.png")
    assert detect(tmp_path).fingerprint == before
    assert detect(tmp_path).scan().notes == ()


def test_folders_of_these_names_with_images_are_classes(tmp_path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "config.toml").write_text("")
    for name in ("runs", "inspect-x", "cat"):
        save(tmp_path / name / "1.png")
    assert detect(tmp_path).scan().classes == ("cat", "inspect-x", "runs")


def test_names_in_any_script_and_both_forms_of_accents(tmp_path) -> None:
    composed, decomposed = "n\u00e6vus-\u00e9", "n\u00e6vus-e\u0301"
    for side, name in (("train", composed), ("val", decomposed), ("test", composed)):
        save(tmp_path / side / name / "фото 1.png")
        save(tmp_path / side / "正常" / "眼底.jpg")
    index = scan(tmp_path)
    assert index.classes == (composed, "正常")
    assert index.labels.tolist() == [0, 1] * 3
    assert index.ids[1] == "train/正常/眼底.jpg"


def test_names_that_are_not_utf8_are_escaped(tmp_path) -> None:
    flat_folder(tmp_path)
    try:
        Path(os.fsdecode(os.fsencode(tmp_path / "cat") + b"/\xff.png")).write_bytes(b"bad")
    except OSError:
        pytest.skip("this file system allows only UTF-8 names")
    assert read_at(tmp_path, on_bad_file="skip").index.notes[-1].endswith(": 1, the first is cat/\\xff.png")


def test_bad_files_are_refused_or_skipped(tmp_path) -> None:
    flat_folder(tmp_path)
    (tmp_path / "cat" / "3.jpg").write_bytes(cut_jpeg())
    (tmp_path / "dog" / "letter").write_text("not an image")
    with pytest.raises(FedBMError, match=r'2 of 8 images .* first is cat/3.jpg \(.*truncated.*on_bad_file = "skip"'):
        read_at(tmp_path)
    decoded = read_at(tmp_path, on_bad_file="skip")
    assert decoded.index.notes[-1] == "skipped unreadable images: 2, the first is cat/3.jpg"
    assert decoded.index.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert shades(decoded) == [0, 1, 2, 100, 101, 102]
    assert len(decoded.index.ids) == 6


def test_circular_links_are_bad_files(tmp_path) -> None:
    flat_folder(tmp_path)
    (tmp_path / "cat" / "self.png").symlink_to(tmp_path / "cat" / "self.png")
    with pytest.raises(FedBMError, match=r"1 of 7 images .* the first is cat/self.png"):
        read_at(tmp_path)
    assert read_at(tmp_path, on_bad_file="skip").index.notes[-1].endswith(": 1, the first is cat/self.png")
    (tmp_path / "cat" / "up").symlink_to(tmp_path, target_is_directory=True)
    assert read_at(tmp_path, on_bad_file="skip").index.notes[-1].endswith(": 1, the first is cat/self.png")


def test_fingerprint_changes_with_the_content(tmp_path) -> None:
    first = detect(flat_folder(tmp_path)).fingerprint
    assert detect(tmp_path).fingerprint == first
    save(tmp_path / "cat" / "new.png")
    assert detect(tmp_path).fingerprint != first


def make_empty(root: Path) -> None:
    root.mkdir(exist_ok=True)


def make_loose_images(root: Path) -> None:
    save(root / "1.png")


def make_one_class(root: Path) -> None:
    for i in range(5):
        save(root / "cat" / f"{i}.png")


def make_too_deep(root: Path) -> None:
    flat_folder(root / "data" / "images")


def make_patients_in_one_class(root: Path) -> None:
    for i in range(3):
        save(flat_folder(root) / "cat" / f"patient-{i}" / "1.png")


def make_patients_in_all_classes(root: Path) -> None:
    for name in ("cat", "dog"):
        save(root / name / "patient" / "1.png")


def make_class_of_one_folder(root: Path) -> None:
    save(flat_folder(root) / "mouse" / "patient" / "1.png")


def make_empty_class(root: Path) -> None:
    flat_folder(root)
    (root / "mouse").mkdir()


def make_class_not_in_train(root: Path) -> None:
    save(split_folder(root) / "test" / "mouse" / "1.png")


def make_empty_train_class(root: Path) -> None:
    (split_folder(root) / "train" / "mouse").mkdir()


def make_no_train(root: Path) -> None:
    split_folder(root, "val", "test")


def make_two_vals(root: Path) -> None:
    split_folder(root, "train", "val", "valid", "test")


def make_misspelt_train(root: Path) -> None:
    split_folder(root, "trian", "val", "test")


def make_subsets_without_classes(root: Path) -> None:
    for name in ("train", "val", "test"):
        (root / name).mkdir()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            make_empty,
            "should contain one folder of images per class, .* but it has 0 images in such folders and 0 in deeper",
        ),
        (make_loose_images, "has 0 images in such folders and 0 in deeper ones"),
        (make_one_class, r"has 1 class \(cat\), but at least 2 are needed"),
        (make_too_deep, r"6 in deeper ones \(data/images/cat/0.png and 5 more\)"),
        (
            make_patients_in_one_class,
            r"3 in deeper ones \(cat/patient-0/1.png and 2 more\): .* table path,label,patient",
        ),
        (make_patients_in_all_classes, r"2 in deeper ones \(cat/patient/1.png and 1 more\)"),
        (make_class_of_one_folder, r"has 6 images in such folders and 1 in deeper ones \(mouse/patient/1.png\)"),
        (make_empty_class, 'too few images of class "mouse": 0'),
        (make_class_not_in_train, 'has no training image of class "mouse"'),
        (make_empty_train_class, 'has no training image of class "mouse"'),
        (make_no_train, "has the folders test, val: it should contain one train"),
        (make_misspelt_train, r"deeper ones \(test/cat/1.png and 5 more\)"),
        (make_two_vals, "has the folders test, train, val, valid: it should contain one train, one val and one test"),
        (make_subsets_without_classes, "has 0 images in such folders"),
    ],
)
def test_unusable_folders_are_refused(tmp_path, make, sentence) -> None:
    make(tmp_path)
    with pytest.raises(FedBMError, match=sentence) as caught:
        scan(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_val_is_cut_from_train_if_there_is_none(tmp_path) -> None:
    for side, count in (("Training", 16), ("Testing", 4)):
        for name in ("cat", "dog"):
            for i in range(count):
                save(tmp_path / "pets" / side / name / f"{i}.png", i)
    data = load(tmp_path / "pets", size=16, cache=tmp_path / "cache")
    assert data.counts().tolist() == [[14, 14], [2, 2], [4, 4]]
    assert [str(name)[:7] for name in data.ids[data.split == 2]] == ["Testing"] * 8
    assert "pets has no val images: 4 of its 32 train images became val, with seed 0" in data.notes


@pytest.mark.parametrize("present", [("train",), ("train", "val"), ("train", "val", "test")])
def test_a_split_without_test_images_is_refused_unless_all_images_are_split_again(tmp_path, present) -> None:
    pets = split_folder(tmp_path / "pets", *present)
    for name in ("cat", "dog"):
        for i in range(2, 10):
            save(pets / "train" / name / f"{i}.png")
        if "test" in present:
            (pets / "test" / name / "1.png").unlink()
    with pytest.raises(FedBMError, match='pets has no test images: add some, or use split = "stratified"'):
        load(pets, size=16, cache=tmp_path / "cache")
    assert (load(pets, size=16, cache=tmp_path / "cache", split="stratified").counts() > 0).all()


def test_stray_documents_are_ignored_and_counted(tmp_path) -> None:
    flat_folder(tmp_path / "pets")
    for name in ("notes.txt", "README", "labels.CSV", "Thumbs.db", ".DS_Store"):
        (tmp_path / "pets" / "cat" / name).write_text("not an image")
    data = load(tmp_path / "pets", size=16, cache=tmp_path / "cache")
    assert len(data.labels) == 6
    assert "ignored files that are not images of a class: 3 (cat/README, cat/labels.CSV, cat/notes.txt)" in data.notes


def test_images_outside_of_the_classes_are_counted(tmp_path) -> None:
    pets = split_folder(tmp_path / "pets")
    save(pets / "0.png")
    save(pets / "train" / "1.png")
    (pets / "labels.csv").write_text("")
    assert scan(pets).notes == ("ignored files that are not images of a class: 3 (0.png, labels.csv, train/1.png)",)


def test_a_class_without_images_is_refused_also_if_there_is_a_prepared_copy(tmp_path) -> None:
    flat_folder(tmp_path / "pets")
    load(tmp_path / "pets", size=16, cache=tmp_path / "cache")
    (tmp_path / "pets" / "cow").mkdir()
    with pytest.raises(FedBMError, match='pets has too few images of class "cow": 0'):
        load(tmp_path / "pets", size=16, cache=tmp_path / "cache")


def test_if_no_file_is_an_image_the_error_names_one_and_says_what_to_use(tmp_path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.nii").write_bytes(b"n+1")
    with pytest.raises(FedBMError, match=r"6 of 6 images .* the first is cat/0.nii \(not an image\): use JPEG, PNG"):
        read_at(tmp_path)


def test_skipping_does_not_hide_that_a_class_cannot_be_read(tmp_path) -> None:
    flat_folder(tmp_path / "pets")
    for i in range(3):
        (tmp_path / "pets" / "dog" / f"{i}.png").write_bytes(cut_jpeg())
    with pytest.raises(FedBMError, match='pets has too few images of class "dog": 0'):
        load(tmp_path / "pets", size=16, cache=tmp_path / "cache", on_bad_file="skip")
