from __future__ import annotations

import numpy as np
import pytest
from pictures import SHARED, read_at, scan, shades, small_chars74k

from fedbm.data.dataset import load
from fedbm.errors import FedBMError


def arrays(writers: int = 10) -> dict[str, np.ndarray]:
    """Two characters by each writer, as the Chars74K file has 62."""
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
    listing = decoded.listing
    assert listing.classes == ("cross", "nought")
    assert listing.labels.tolist() == [0] * 10 + [1] * 10
    assert listing.columns["writer"].tolist() == [str(i) for i in range(10)] * 2
    assert listing.columns["site"].tolist() == ["a", "b"] * 10
    assert (listing.split, listing.size, listing.channels) == (None, 20, 1)
    assert shades(decoded) == list(range(20))


def test_colour_a_split_and_names_are_read(tmp_path) -> None:
    held = arrays()
    more = {"split": np.array([0] * 7 + [1, 2, 2] + [0] * 7 + [1, 2, 2]), "ids": np.array([f"x{i}" for i in range(20)])}
    np.savez(tmp_path / "game.npz", **held | more | {"images": np.repeat(held["images"][..., None], 3, axis=3)})
    listing = scan(tmp_path / "game.npz")
    assert np.bincount(listing.split).tolist() == [14, 2, 4]
    assert listing.ids[3] == "x3"
    assert listing.channels == 3


def test_writers_are_split_as_wholes(tmp_path) -> None:
    np.savez(tmp_path / "game.npz", **arrays())
    data = load(tmp_path / "game.npz", cache=tmp_path / "cache")
    assert data.shape == (1, 20, 20)
    assert data.counts().tolist() == [[7, 7], [1, 1], [2, 2]]
    assert "none of its 10 values of writer is on two sides" in data.notes[-1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": np.zeros((20, 16, 16))}, "images are float64"),
        ({"images": np.zeros((20, 16, 16, 2), dtype=np.uint8)}, r"images are uint8 \(20, 16, 16, 2\)"),
        ({"labels": np.full(20, 2)}, "labels point outside classes"),
        ({"writer": np.arange(19)}, "writer has not one text or whole number for each of the 20 images"),
        ({"writer": np.zeros(20)}, "writer has not one text or whole number"),
        ({"ids": np.array(["a"] * 20)}, 'names the sample "a" twice'),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, change, sentence) -> None:
    np.savez(tmp_path / "game.npz", **arrays() | change)
    with pytest.raises(FedBMError, match=sentence):
        scan(tmp_path / "game.npz")


def test_images_that_are_enlarged_are_said_to_be(tmp_path) -> None:
    np.savez(tmp_path / "game.npz", **arrays())
    large = load(tmp_path / "game.npz", size=32, cache=tmp_path / "cache")
    assert large.notes[-1] == "the images of game have 20 pixels a side and were enlarged to 32"
    assert not any("enlarged" in note for note in load(tmp_path / "game.npz", size=16, cache=tmp_path / "cache").notes)


def test_a_small_chars74k_is_known_by_its_name_and_drawn_by_writer(tmp_path) -> None:
    """55 writers, each class once: 50 take part; another name or other classes make it anyone's arrays."""
    held = small_chars74k()
    np.savez(tmp_path / "chars74k_hnd_16.npz", **held)
    data = load("chars74k", folder=tmp_path, cache=tmp_path / "cache")
    assert (data.name, data.hflip, data.counts().tolist()) == ("chars74k", False, [[35] * 62, [5] * 62, [10] * 62])
    other = load("chars74k", folder=tmp_path, cache=tmp_path / "cache", split_seed=1)
    assert set(other.columns["writer"]) != set(data.columns["writer"])
    np.savez(tmp_path / "letters.npz", **held)
    assert load(tmp_path / "letters.npz", cache=tmp_path / "cache").name == "letters"


def test_chars74k_goes_by_writer(tmp_path) -> None:
    """As FEMNIST in the paper: 50 writers, 35 train, 5 validate, 10 test; flips and concepts are FEMNIST's."""
    path = SHARED / "chars74k_hnd_28.npz"
    if not path.exists():
        pytest.skip("needs ../shared/data/chars74k_hnd_28.npz")
    data = load("chars74k", folder=path.parent, cache=tmp_path)
    assert (data.name, data.shape, len(data.classes)) == ("chars74k", (1, 28, 28), 62)
    writers = [set(data.columns["writer"][data.split == side]) for side in range(3)]
    assert [len(side) for side in writers] == [35, 5, 10]
    assert not set.intersection(*writers)
    assert data.counts().tolist() == [[35] * 62, [5] * 62, [10] * 62]
    assert data.recommends["partition_column"] == "writer"
    assert (data.hflip, data.vflip) == (False, False)
    assert data.notes == ("50 of the 55 writers, drawn with seed 0: 35 train, 5 validate, 10 test",)
