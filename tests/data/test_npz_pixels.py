""".npz files of pixels, among them Chars74K."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import SHARED, read_at, scan, shades, small_chars74k

from fedbm.data.dataset import load
from fedbm.errors import FedBMError


def arrays(writers: int = 10) -> dict[str, np.ndarray]:
    """Return two characters by each writer; Chars74K has 62."""
    count = 2 * writers
    return {
        "images": np.repeat(np.arange(count, dtype=np.uint8), 20 * 20).reshape(count, 20, 20),
        "labels": np.repeat([0, 1], writers).astype(np.uint8),
        "writer": np.tile(np.arange(writers), 2).astype(np.uint8),
        "classes": np.array(["cross", "nought"]),
    }


def test_pixels_labels_and_columns_are_read(tmp_path) -> None:
    np.savez(tmp_path / "game.npz", **arrays(), site=np.array(list("ab") * 10))
    decoded = read_at(tmp_path / "game.npz", 20, 1)
    index = decoded.index
    assert index.classes == ("cross", "nought")
    assert index.labels.tolist() == [0] * 10 + [1] * 10
    assert index.columns["writer"].tolist() == [str(i) for i in range(10)] * 2
    assert index.columns["site"].tolist() == ["a", "b"] * 10
    assert (index.split, index.size, index.channels) == (None, 20, 1)
    assert shades(decoded) == list(range(20))


def test_a_column_may_be_called_like_an_array_of_medmnist(tmp_path) -> None:
    np.savez(tmp_path / "game.npz", **arrays(), test_date=np.array(["2020"] * 20))
    assert set(scan(tmp_path / "game.npz").columns) == {"writer", "test_date"}


def test_colour_images_split_and_ids_are_read(tmp_path) -> None:
    small = arrays()
    more = {"split": np.array([0] * 7 + [1, 2, 2] + [0] * 7 + [1, 2, 2]), "ids": np.array([f"x{i}" for i in range(20)])}
    np.savez(tmp_path / "game.npz", **small | more | {"images": np.repeat(small["images"][..., None], 3, axis=3)})
    index = scan(tmp_path / "game.npz")
    assert np.bincount(index.split).tolist() == [14, 2, 4]
    assert index.ids[3] == "x3"
    assert index.channels == 3


def test_writers_are_not_separated_by_the_split(tmp_path) -> None:
    np.savez(tmp_path / "game.npz", **arrays())
    data = load(tmp_path / "game.npz", cache=tmp_path / "cache")
    assert data.shape == (1, 20, 20)
    assert data.counts().tolist() == [[7, 7], [1, 1], [2, 2]]
    assert "each of the 10 values of writer is in one subset" in data.notes[-1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": np.zeros((20, 16, 16))}, "images are float64"),
        ({"images": np.zeros((20, 16, 16, 2), dtype=np.uint8)}, r"images are uint8 \(20, 16, 16, 2\)"),
        ({"labels": np.full(20, 2)}, "labels are not 20 whole numbers from 0 to 1"),
        ({"writer": np.arange(19)}, "writer must have one text or whole number for each of the 20 images"),
        ({"writer": np.zeros(20)}, "writer must have one text or whole number"),
        ({"ids": np.array(["a"] * 20)}, 'contains the sample "a" twice'),
    ],
)
def test_unusable_files_are_refused(tmp_path, change, sentence) -> None:
    np.savez(tmp_path / "game.npz", **arrays() | change)
    with pytest.raises(FedBMError, match=sentence):
        scan(tmp_path / "game.npz")


def test_enlarged_images_are_noted(tmp_path) -> None:
    np.savez(tmp_path / "game.npz", **arrays())
    large = load(tmp_path / "game.npz", size=32, cache=tmp_path / "cache")
    note = "images were enlarged from at most 20 to 32 pixels: size = 20 (--size 20) saves memory and time"
    assert note in large.notes
    assert not any("enlarged" in note for note in load(tmp_path / "game.npz", size=16, cache=tmp_path / "cache").notes)


def test_chars74k_is_recognised_by_its_file_name(tmp_path) -> None:
    """50 of the 55 writers take part. A file with another name is not taken for Chars74K."""
    characters = small_chars74k()
    np.savez(tmp_path / "chars74k_hnd_16.npz", **characters)
    data = load("chars74k", folder=tmp_path, cache=tmp_path / "cache")
    assert (data.name, data.hflip, data.counts().tolist()) == ("chars74k", False, [[35] * 62, [5] * 62, [10] * 62])
    other = load("chars74k", folder=str(tmp_path), cache=tmp_path / "cache", split_seed=1)
    assert set(other.columns["writer"]) != set(data.columns["writer"])
    np.savez(tmp_path / "letters.npz", **characters)
    assert load(tmp_path / "letters.npz", cache=tmp_path / "cache").name == "letters"


def test_the_real_chars74k_is_split_by_writer(tmp_path) -> None:
    """50 writers take part, 35 for train, 5 for val and 10 for test, as for FEMNIST in the paper."""
    path = SHARED / "chars74k_hnd_28.npz"
    if not path.exists():
        pytest.skip("needs ../shared/data/chars74k_hnd_28.npz")
    data = load("chars74k", folder=path.parent, cache=tmp_path)
    assert (data.name, data.shape, len(data.classes)) == ("chars74k", (1, 28, 28), 62)
    writers = [set(data.columns["writer"][data.split == code]) for code in range(3)]
    assert [len(subset) for subset in writers] == [35, 5, 10]
    assert not set.intersection(*writers)
    assert data.counts().tolist() == [[35] * 62, [5] * 62, [10] * 62]
    assert data.recommends["partition_column"] == "writer"
    assert (data.hflip, data.vflip) == (False, False)
    assert data.notes == ("50 of the 55 writers were drawn with seed 0: 35 for train, 5 for val, 10 for test",)
