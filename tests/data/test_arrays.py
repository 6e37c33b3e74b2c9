"""Data sets from arrays and from PyTorch data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset

import fedbm
from fedbm import FedBMError, from_arrays, from_torch

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
LABELS = np.arange(20) % 2
NAMES = ("cyst", "polyp")


class Pairs(Dataset):
    """A map-style data set of the given items."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


def test_arrays_are_a_data_set_as_load_makes_it(tmp_path: Path) -> None:
    """The same images in a file give the same checksum, so the same run."""
    np.savez(tmp_path / "game.npz", images=IMAGES, labels=LABELS, classes=NAMES)
    read = fedbm.load(tmp_path / "game.npz", cache=tmp_path / "cache")
    made = from_arrays(IMAGES, LABELS, NAMES, name="game")
    for field in ("name", "classes", "concepts", "mean", "std", "checksum", "notes", "modality"):
        assert getattr(made, field) == getattr(read, field)
    assert np.array_equal(made.split, read.split)
    assert made.ids.tolist() == read.ids.tolist()
    assert made.images is IMAGES


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (IMAGES[..., 0], (1, 16, 16)),
        (IMAGES[..., :1], (1, 16, 16)),
        (IMAGES.transpose(0, 3, 1, 2), (3, 16, 16)),
        (torch.from_numpy(IMAGES), (3, 16, 16)),
        (IMAGES[:, :13, :9], (3, 16, 16)),
        (np.zeros((20, 30, 21)), (1, 32, 32)),
    ],
)
def test_shapes(images: Any, shape: tuple[int, int, int]) -> None:
    made = from_arrays(images, LABELS)
    assert made.shape == shape
    assert made.images.flags.c_contiguous
    assert made.classes == ("0", "1")


def test_floats_are_scaled_and_rounded() -> None:
    images = np.zeros((20, 16, 16))
    images[0, 0, :3] = (1.0, 0.5, 1 / 255)
    assert from_arrays(images, LABELS).images[0, 0, :4, 0].tolist() == [255, 128, 1, 0]


def test_size_channels_columns_split_and_concepts() -> None:
    split = ["train", "train", "valid", "test"] * 5
    patients = [f"p{i // 5}" for i in range(20)]
    texts = {"polyp": "a colonic polyp"}
    options: dict[str, Any] = {"split": split, "columns": {"patient": patients}, "concepts": texts}
    made = from_arrays(IMAGES, [NAMES[k] for k in LABELS], size=32, channels=1, **options)
    assert (made.shape, made.classes, made.concepts) == ((1, 32, 32), NAMES, ("cyst", "a colonic polyp"))
    assert made.split.tolist() == [0, 0, 1, 2] * 5
    assert (from_arrays(IMAGES, LABELS, split=np.array([0.0, 0.0, 1.0, 2.0] * 5)).split == made.split).all()
    assert made.columns["patient"].tolist() == patients
    assert any("enlarged from at most 16 to 32" in note for note in made.notes)
    assert any("values of patient are in more than one" in note for note in made.notes)


@pytest.mark.parametrize("kind", [object, *([np.dtypes.StringDType()] if hasattr(np.dtypes, "StringDType") else [])])
def test_class_names_as_a_column_of_a_data_frame_has_them(kind: Any) -> None:
    made = from_arrays(IMAGES, np.array([NAMES[k] for k in LABELS], dtype=kind))
    assert (made.classes, made.labels.tolist()) == (NAMES, LABELS.tolist())


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"images": IMAGES[0, 0]}, r"images has the shape \[16, 3\]: use \[n, height, width\]"),
    ({"images": IMAGES[:0]}, r"images has the shape \[0, 16, 16, 3\]"),
    ({"images": np.zeros((20, 16, 16, 4), np.uint8)}, "1 or 3 channels as second or last axis"),
    ({"images": IMAGES.astype(np.int64)}, "images has int64 values: use uint8 from 0 to 255, or floating"),
    ({"images": IMAGES / 100}, "images has float64 values: use uint8"),
    ({"images": IMAGES / 255 - 0.5}, "images has float64 values: .* undo a normalisation"),
    ({"images": np.full((20, 16, 16), np.nan)}, "images has float64 values: .* without NaN"),
    ({"images": [IMAGES[0], IMAGES[1, :8]]}, "images cannot be read as one array: "),
    ({"labels": LABELS[:19]}, r"the shape of labels is \[19\], but 20 images need one value each"),
    ({"labels": np.eye(20)}, r"the shape of labels is \[20, 20\]"),
    ({"labels": LABELS / 2}, "the label of image 1 is 0.5, but it must be 0 to 1 or a name"),
    ({"labels": LABELS + 1}, "the label of image 1 is 2, but it must be 0 to 1 or a name"),
    ({"labels": LABELS + 2_000_000_000, "classes": None}, "labels contain 2000000001, but there are 20 images"),
    (
        {"labels": np.array(["cyst", None] * 10, dtype=object)},
        "the label of image 1 is None, but it must be 0 to 1 or a name",
    ),
    ({"labels": LABELS - 1}, "the label of image 0 is -1, but it must be 0 to 1"),
    ({"labels": ["cyst", "Polyp"] * 10}, r'the label of image 1 is Polyp \(did you mean "polyp"\?\)'),
    ({"classes": ("cyst", "cyst")}, "classes are cyst, cyst: give every class a name of its own"),
    ({"split": [0, 1, 2, 3] * 5}, 'row 4 of split has the split "3", but it must be train, val or test, or 0, 1 or 2'),
    ({"split": ["train", "dev"] * 10}, 'row 2 of split has the split "dev"'),
    ({"split": [0] * 20}, "arrays has no test images"),
    ({"columns": {"site": ["Oslo"]}}, r"the shape of site is \[1\], but 20 images need one value each"),
    ({"concepts": {"wart": "a wart"}}, 'concepts name the class "wart"'),
    ({"size": 30}, "image size 30 is not supported"),
    ({"channels": 2}, "2 channels are not supported"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_mistakes(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedBMError, match=sentence):
        from_arrays(**{"images": IMAGES, "labels": LABELS, "classes": NAMES, **wrong})


def test_torch_tensors_equal_the_arrays() -> None:
    chw, classes = torch.from_numpy(IMAGES).permute(0, 3, 1, 2), torch.from_numpy(LABELS)
    expected = from_arrays(IMAGES, LABELS)
    for images in (chw, chw / 255):
        made = from_torch(TensorDataset(images, classes))
        assert (made.checksum, made.name) == (expected.checksum, "torch")


def test_pil_images_of_several_sizes() -> None:
    """As torchvision's ImageFolder gives them; a label of MedMNIST is an array of one number."""
    grey = [Image.fromarray(image[:12, :, 0]).resize((30 + i, 20)) for i, image in enumerate(IMAGES)]
    pairs = Pairs(*[(image, np.array([i % 2])) for i, image in enumerate(grey)])
    pairs.classes = list(NAMES)  # type: ignore[attr-defined]
    assert repr(from_torch(pairs, name="mine")) == (
        "Dataset(mine: 20 images of (1, 32, 32), 2 classes, train 14, val 2, test 4)"
    )
    assert "enlarged" not in str(from_torch(pairs, NAMES, size=40).notes), "one image has 49 pixels"
    assert "enlarged from at most 49 to 64" in str(from_torch(pairs, NAMES, size=64).notes)
    palette = Pairs(*[(Image.fromarray(image).convert("P"), i % 2) for i, image in enumerate(IMAGES)])
    assert from_torch(palette).shape == (3, 16, 16)
    joined = ConcatDataset([pairs, palette])
    with pytest.raises(FedBMError, match="image 20 has 3 channels, but image 0 has 1: give channels=1"):
        from_torch(joined)
    made = from_torch(joined, channels=3, split=[0] * 20 + [1, 2] * 10)
    assert made.counts().sum(axis=1).tolist() == [20, 10, 10]


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        yield IMAGES[0], 0


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (Endless(), "the Endless has no items: use a map-style data set"),
        (Pairs(), "the Pairs has no items"),
        (IMAGES, r"item 0 of the data set is not \(image, label\) with one label"),
        (Pairs((IMAGES[0], [0, 1])), r"item 0 of the data set is not \(image, label\) with one label"),
        (Pairs((IMAGES[0], 0), (IMAGES[0] / 99, 1)), "image 1 has float64 values: use uint8"),
        (Pairs((Image.new("I;16", (16, 16)), 0)), "image 0 has uint16 values"),
        (Pairs(("a.png", 0)), "image 0 has the shape"),
    ],
)
def test_mistakes_of_torch_data_sets(data: Any, sentence: str) -> None:
    with pytest.raises(FedBMError, match=sentence):
        from_torch(data)


def test_they_are_simulated_compared_and_inspected(tmp_path: Path) -> None:
    data = from_arrays(IMAGES, LABELS, NAMES)
    settings: dict[str, Any] = {"rounds": 1, "width": 4, "clients": 2, "device": "cpu", "out": tmp_path}
    run = fedbm.simulate(data, method="fedavg", **settings)
    found = fedbm.compare(data, ["fedavg"], seeds=1, **settings)
    assert [each.id for each in found.runs] == [run.id]
    assert fedbm.load_model(run).predict(data.images[:2]).shape == (2, 2)
    assert "fewer than 5 val images" in str(fedbm.inspect(data).warnings)
