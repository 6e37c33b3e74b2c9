"""MedMNIST's .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pictures import read_at, scan

from fedbm.data.catalog.entries import CATALOG
from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError

SIZES = {"train": 20, "val": 4, "test": 6}


def arrays(classes: int = 8, shape: tuple[int, ...] = (28, 28, 3)) -> dict[str, np.ndarray]:
    """Return arrays in the layout of the real files: labels [n, 1], every image with a different shade."""
    made, shade = {}, 0
    for subset, count in SIZES.items():
        labels = np.arange(count, dtype=np.uint8)[:, None] % classes
        images = np.zeros((count, *shape), dtype=np.uint8)
        for image in images:
            image[:] = shade
            shade += 1
        made |= {f"{subset}_images": images, f"{subset}_labels": labels}
    return made


def make(path: Path, **change) -> Path:
    saved = {key: value for key, value in (arrays() | change).items() if value is not None}
    np.savez_compressed(path, **saved)
    return path


def test_a_file_is_read_with_its_split_and_class_names_of_the_catalogue(tmp_path) -> None:
    decoded = read_at(make(tmp_path / "bloodmnist.npz"), 28)
    index = decoded.index
    assert index.classes == tuple(CATALOG["pbc"].classes)
    assert np.bincount(index.split).tolist() == list(SIZES.values())
    assert index.labels[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert decoded.images[:, 14, 14, 2].tolist() == list(range(30))
    assert (index.ids[0], index.ids[-1]) == ("train 0", "test 5")
    assert index.notes == ()


@pytest.mark.parametrize("side", [28, 64, 128])
@pytest.mark.parametrize("grey", [True, False])
def test_size_and_channels_are_taken_from_the_file(tmp_path, side, grey) -> None:
    shape = (side, side) if grey else (side, side, 3)
    np.savez(tmp_path / f"bloodmnist_{side}.npz", **arrays(shape=shape))
    data = load(tmp_path / f"bloodmnist_{side}.npz", cache=tmp_path / "cache")
    assert data.name == "bloodmnist"
    assert data.shape == (1 if grey else 3, side, side)
    assert len(data.mean) == data.shape[0]
    assert data.recommends == CATALOG["pbc"].recommends


@pytest.mark.parametrize("name", [name for name in CATALOG if name.endswith("mnist") and name != "femnist"])
def test_every_set_is_recognised_by_its_file_name(tmp_path, name) -> None:
    entry = CATALOG[name]
    shape = (28, 28, 3) if entry.channels == 3 else (28, 28)
    np.savez(tmp_path / f"{name}_64.npz", **arrays(len(entry.classes), shape))
    data = load(tmp_path / f"{name}_64.npz", cache=tmp_path / "cache")
    assert (data.name, data.modality, data.notes) == (name, entry.modality, ())
    assert data.concepts == tuple(entry.classes.values())


@pytest.mark.parametrize("classes", [3, 10])
def test_classes_of_an_unknown_set_are_numbers(tmp_path, classes) -> None:
    """Ten classes with numbers are not taken for the digits."""
    np.savez(tmp_path / "ournewmnist.npz", **arrays(classes))
    data = load(tmp_path / "ournewmnist.npz", cache=tmp_path / "cache")
    assert data.classes == tuple(map(str, range(classes)))
    assert data.name == "ournewmnist"
    assert any('no MedMNIST set "ournewmnist"' in note for note in data.notes)
    assert any("encode the class names" in note for note in data.notes)


def test_the_name_is_part_of_the_identity(tmp_path) -> None:
    make(tmp_path / "bloodmnist.npz")
    (tmp_path / "tissuemnist.npz").write_bytes((tmp_path / "bloodmnist.npz").read_bytes())
    assert detect(tmp_path / "bloodmnist.npz").fingerprint != detect(tmp_path / "tissuemnist.npz").fingerprint


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"val_images": None, "test_labels": None},
            "contains the arrays test_images, train_images, train_labels, val_labels, but it must contain",
        ),
        (
            {"train_labels": np.zeros((20, 14), dtype=np.uint8)},
            r"train_labels uint8 \(20, 14\); it must contain .* 2-D images .* with one label each",
        ),
        (
            {"train_images": np.zeros((20, 28, 28, 28), dtype=np.uint8)},
            r"images are uint8 \(20, 28, 28, 28\); it must contain .* 2-D images",
        ),
        (
            {"train_images": np.zeros((19, 28, 28), dtype=np.uint8)},
            r"train_images are \(19, 28, 28\) and train_labels uint8 \(20, 1\)",
        ),
        ({"train_images": np.zeros((20, 28, 28))}, "train_images are float64"),
        ({"val_images": np.zeros((4, 64, 64, 3), dtype=np.uint8)}, r"val_images are \(4, 64, 64, 3\)"),
        ({"test_labels": np.full((6, 1), 8)}, "the labels 0 to 8 are not from 0 to 7"),
        ({"test_labels": np.full((6, 1), -1)}, "the labels -1 to 7 are not from 0 to 7"),
        ({"train_labels": np.zeros((20, 1), dtype=np.uint8)}, 'has no training image of class "eosinophil"'),
        ({"train_labels": np.array([{}] * 20, dtype=object)}, "cannot read .*Object arrays"),
    ],
)
def test_unusable_files_are_refused(tmp_path, change, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        scan(make(tmp_path / "bloodmnist.npz", **change))


def test_a_label_above_the_number_of_images_is_refused_before_classes_are_named(tmp_path) -> None:
    """There would be a class name for each number up to the label."""
    with pytest.raises(FedBMError, match="the labels 0 to 2000000000 are not from 0 to 29"):
        scan(make(tmp_path / "codes.npz", train_labels=np.full((20, 1), 2_000_000_000)))


def test_arrays_in_fortran_order_are_refused(tmp_path) -> None:
    images = np.asfortranarray(arrays()["train_images"])
    with pytest.raises(FedBMError, match="column by column, save it as np.ascontiguousarray"):
        read_at(make(tmp_path / "bloodmnist.npz", train_images=images), 28)
