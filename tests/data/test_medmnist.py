from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pictures import read_at, scan

from fedbm.data.catalog.lookup import CATALOG
from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError

SIDES = {"train": 20, "val": 4, "test": 6}


def arrays(classes: int = 8, shape: tuple[int, ...] = (28, 28, 3)) -> dict[str, np.ndarray]:
    """The layout of the real files: labels [n, 1], every image of one shade."""
    made, shade = {}, 0
    for side, count in SIDES.items():
        labels = np.arange(count, dtype=np.uint8)[:, None] % classes
        images = np.zeros((count, *shape), dtype=np.uint8)
        for image in images:
            image[:] = shade
            shade += 1
        made |= {f"{side}_images": images, f"{side}_labels": labels}
    return made


def make(path: Path, **change) -> Path:
    saved = {key: value for key, value in (arrays() | change).items() if value is not None}
    np.savez_compressed(path, **saved)
    return path


def test_a_file_is_read_with_its_split_and_the_names_of_the_catalogue(tmp_path) -> None:
    decoded = read_at(make(tmp_path / "bloodmnist.npz"), 28)
    listing = decoded.listing
    assert listing.classes == tuple(CATALOG["pbc"].classes)
    assert np.bincount(listing.split).tolist() == list(SIDES.values())
    assert listing.labels[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert decoded.images[:, 14, 14, 2].tolist() == list(range(30))
    assert (listing.ids[0], listing.ids[-1]) == ("train 0", "test 5")
    assert listing.notes == ()


@pytest.mark.parametrize("side", [28, 64, 128])
@pytest.mark.parametrize("grey", [True, False])
def test_size_and_colour_are_the_files_own(tmp_path, side, grey) -> None:
    shape = (side, side) if grey else (side, side, 3)
    np.savez(tmp_path / f"bloodmnist_{side}.npz", **arrays(shape=shape))
    data = load(tmp_path / f"bloodmnist_{side}.npz", cache=tmp_path / "cache")
    assert data.name == "bloodmnist"
    assert data.shape == (1 if grey else 3, side, side)
    assert len(data.mean) == data.shape[0]
    assert data.recommends == CATALOG["pbc"].recommends


@pytest.mark.parametrize("name", [name for name in CATALOG if name.endswith("mnist") and name != "femnist"])
def test_every_set_of_the_catalogue_is_known_by_its_file(tmp_path, name) -> None:
    entry = CATALOG[name]
    shape = (28, 28, 3) if entry.channels == 3 else (28, 28)
    np.savez(tmp_path / f"{name}_64.npz", **arrays(len(entry.classes), shape))
    data = load(tmp_path / f"{name}_64.npz", cache=tmp_path / "cache")
    assert (data.name, data.modality, data.notes) == (name, entry.modality, ())
    assert data.concepts == tuple(entry.classes.values())


@pytest.mark.parametrize("classes", [3, 10])
def test_an_unknown_set_goes_by_numbers_and_is_taken_for_no_other(tmp_path, classes) -> None:
    """Ten numbers are not the digits."""
    np.savez(tmp_path / "ournewmnist.npz", **arrays(classes))
    data = load(tmp_path / "ournewmnist.npz", cache=tmp_path / "cache")
    assert data.classes == tuple(map(str, range(classes)))
    assert data.name == "ournewmnist"
    assert any('no set of one label called "ournewmnist"' in note for note in data.notes)
    assert any("class names serve as concepts" in note for note in data.notes)


def test_the_name_is_part_of_the_identity(tmp_path) -> None:
    make(tmp_path / "bloodmnist.npz")
    (tmp_path / "tissuemnist.npz").write_bytes((tmp_path / "bloodmnist.npz").read_bytes())
    assert detect(tmp_path / "bloodmnist.npz").identity != detect(tmp_path / "tissuemnist.npz").identity


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"val_images": None, "test_labels": None}, "has no val_images and no test_labels; it must hold train_images"),
        ({"train_labels": np.zeros((20, 14), dtype=np.uint8)}, "gives each image 14 labels, only sets with one label"),
        ({"train_images": np.zeros((20, 28, 28, 28), dtype=np.uint8)}, r"holds 3-D images \(28×28×28\), only 2-D"),
        ({"train_images": np.zeros((19, 28, 28), dtype=np.uint8)}, "not 20 uint8 images"),
        ({"train_images": np.zeros((20, 28, 28))}, "train_images are float64"),
        ({"val_images": np.zeros((4, 64, 64, 3), dtype=np.uint8)}, "of train, val and test are not of one size"),
        ({"test_labels": np.full((6, 1), 8)}, "an image with label 8, the labels of bloodmnist end with 7"),
        ({"test_labels": np.full((6, 1), -1)}, "test_labels are not whole numbers from 0 up"),
        ({"train_labels": np.zeros((20, 1), dtype=np.uint8)}, 'has no training image of class "eosinophil"'),
        ({"train_labels": np.array([{}] * 20, dtype=object)}, "cannot read .*Object arrays"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, change, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        scan(make(tmp_path / "bloodmnist.npz", **change))


def test_an_array_stored_columns_first_is_refused_not_scrambled(tmp_path) -> None:
    images = np.asfortranarray(arrays()["train_images"])
    with pytest.raises(FedBMError, match="columns first, save it as np.ascontiguousarray"):
        read_at(make(tmp_path / "bloodmnist.npz", train_images=images), 28)
