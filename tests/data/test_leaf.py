"""FEMNIST in LEAF's layout: files of users with their samples, made small enough to write them as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pictures import flat_folder, read_at, scan

from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError

SIDE = 16  # LEAF's own images have 28; the reader takes any square


def user(labels: list[int], value: float = 1.0) -> dict[str, list]:
    return {"x": [[value] + [0.0] * (SIDE * SIDE - 1) for _ in labels], "y": labels}


def write(path: Path, users: dict[str, dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(data["y"]) for data in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": users}))


def make(root: Path, users: int) -> Path:
    """Every user writes every character once, and so much of "0" more; files in train and test, as LEAF splits them."""
    made = {f"f{i:04d}_{i % 60:02d}": user([*range(62), *[0] * (i % 5)], i / 255) for i in range(users)}
    names = list(made)
    write(root / "train" / "all_data_0.json", {name: made[name] for name in names[::2]})
    write(root / "test" / "all_data_1.json", {name: made[name] for name in names[1::2]})
    return root


def test_fifty_users_are_drawn_and_split_35_5_10(tmp_path) -> None:
    listing = scan(make(tmp_path, 54))
    writers = listing.columns["writer"]
    sides = [set(writers[listing.split == side]) for side in range(3)]
    assert [len(side) for side in sides] == [35, 5, 10]
    assert len(set.union(*sides)) == 50
    assert len(listing.classes) == 62
    assert listing.notes == (
        "50 of the 54 writers with fewer than 150 samples, drawn with seed 0: 35 train, 5 validate, 10 test",
    )
    again, other = scan(tmp_path), scan(tmp_path, seed=1)
    assert again.ids == listing.ids
    assert set(other.columns["writer"]) != set(writers)


def test_a_user_is_a_client_by_recommendation(tmp_path) -> None:
    data = load(make(tmp_path / "femnist", 10), cache=tmp_path / "cache")
    assert (data.name, data.shape) == ("femnist", (1, SIDE, SIDE))
    assert (data.recommends["partition"], data.recommends["partition_column"]) == ("column", "writer")
    assert len(set(data.columns["writer"][data.indices("train")])) == 7


def test_pixels_and_labels_are_those_of_the_files(tmp_path) -> None:
    decoded = read_at(make(tmp_path, 10), SIDE, 1)
    listing = decoded.listing
    for i in (0, 100, len(listing.ids) - 1):
        assert decoded.images[i, 0, 0, 0] == int(listing.columns["writer"][i][1:5])
        assert decoded.images[i].sum() == decoded.images[i, 0, 0, 0]
    first = listing.columns["writer"] == listing.columns["writer"][0]
    assert listing.labels[first][:62].tolist() == list(range(62))
    assert listing.ids[0] == f"{listing.columns['writer'][0]}/0"


def test_samples_of_one_user_in_two_files_are_merged_before_they_are_counted(tmp_path) -> None:
    make(tmp_path, 8)
    write(tmp_path / "train" / "a.json", {"f9000_00": user([1] * 100), "f9001_00": user([1] * 149)})
    write(tmp_path / "test" / "b.json", {"f9000_00": user([1] * 50), "f9002_00": user([1] * 200)})
    listing = scan(tmp_path)
    assert "of the 9 writers" in listing.notes[0]
    assert (listing.columns["writer"] == "f9001_00").sum() == 149


def test_every_class_is_in_training_even_if_one_user_alone_has_it(tmp_path) -> None:
    users = {f"u{i}": user(list(range(61))) for i in range(9)} | {"u9": user(list(range(62)))}
    write(tmp_path / "all.json", users)
    for seed in range(5):
        listing = scan(tmp_path, seed)
        assert (listing.split[listing.columns["writer"] == "u9"] == 0).all()
    assert (scan(tmp_path / "all.json").labels == scan(tmp_path).labels).all()  # one file may be given


def test_the_seed_and_the_files_are_the_identity(tmp_path) -> None:
    first = detect(make(tmp_path, 5)).identity
    assert detect(tmp_path).identity == first
    assert detect(tmp_path, 1).identity != first
    write(tmp_path / "train" / "more.json", {"u": user([1])})
    assert detect(tmp_path).identity != first


def test_a_folder_of_images_with_json_beside_is_one_of_images(tmp_path) -> None:
    (flat_folder(tmp_path) / "about.json").write_text("{}")
    assert scan(tmp_path).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("users", "sentence"),
    [
        ({"u": user([0, 62])}, 'y of user "u" in .* a label that is no whole number from 0 to 61'),
        ({"u": {"x": [], "y": "abc"}}, 'user "u" in .* must have x and y, two lists'),
        ({"u": {"x": ["the text of a play"], "y": [1]}}, 'x of user "u" in .* are not images of equal size'),
        ({"u": {"x": [[0.0, 0.0], [0.0]], "y": [1, 2]}}, "are not images of equal size"),
        ({"u": {"x": [[0.0, 0.0]], "y": [1]}}, 'user "u" in .* as many square images in x as labels in y'),
        ({"u": user([0], 255.0)}, 'x of user "u" in .* values outside 0 to 1'),
        ({"u": user([0]), "v": user([0] * 150)}, "has 1 users with fewer than 150 samples, it takes 3"),
        ({"u": user([0]), "v": user([0]), "w": user([0])}, 'has no training image of class "1"'),
        ({"u": user([0]), "v": {"x": [[0.0] * 4], "y": [1]}}, "images of 2 and 16 pixels are mixed"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, users, sentence) -> None:
    write(tmp_path / "all.json", users)
    with pytest.raises(FedBMError, match=sentence):
        scan(tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"users": []}', "{", '{"user_data": []}'])
def test_json_of_another_kind_is_refused(tmp_path, text) -> None:
    (tmp_path / "all.json").write_text(text)
    with pytest.raises(FedBMError, match=r"has no user_data|cannot read"):
        scan(tmp_path)
