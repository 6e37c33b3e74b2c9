"""FEMNIST in LEAF's layout, with small images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pictures import flat_folder, read_at, save, scan

from fedbm.data.dataset import load
from fedbm.data.readers.dispatch import detect
from fedbm.errors import FedBMError

SIZE = 16  # LEAF's own images have 28 pixels; the reader accepts any square


def user(labels: list[int], value: float = 1.0) -> dict[str, list]:
    return {"x": [[value] + [0.0] * (SIZE * SIZE - 1) for _ in labels], "y": labels}


def write(path: Path, users: dict[str, dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(data["y"]) for data in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": users}))


def make(root: Path, users: int) -> Path:
    """Write files in train and test: every user writes every character once, and some write "0" more often."""
    made = {f"f{i:04d}_{i % 60:02d}": user([*range(62), *[0] * (i % 5)], i / 255) for i in range(users)}
    names = list(made)
    write(root / "train" / "all_data_0.json", {name: made[name] for name in names[::2]})
    write(root / "test" / "all_data_1.json", {name: made[name] for name in names[1::2]})
    return root


def test_fifty_users_are_drawn_and_split_35_5_10(tmp_path) -> None:
    index = scan(make(tmp_path, 54))
    writers = index.columns["writer"]
    subsets = [set(writers[index.split == code]) for code in range(3)]
    assert [len(subset) for subset in subsets] == [35, 5, 10]
    assert len(set.union(*subsets)) == 50
    assert len(index.classes) == 62
    assert index.notes == (
        "50 of the 54 writers with fewer than 150 samples were drawn with seed 0: 35 for train, 5 for val, 10 for test",
    )
    again, other = scan(tmp_path), scan(tmp_path, seed=1)
    assert again.ids == index.ids
    assert set(other.columns["writer"]) != set(writers)


def test_partition_by_writer_is_recommended(tmp_path) -> None:
    data = load(make(tmp_path / "femnist", 10), cache=tmp_path / "cache")
    assert (data.name, data.shape) == ("femnist", (1, SIZE, SIZE))
    assert (data.recommends["partition"], data.recommends["partition_column"]) == ("column", "writer")
    assert len(set(data.columns["writer"][data.indices("train")])) == 7


def test_pixels_and_labels_equal_the_files(tmp_path) -> None:
    decoded = read_at(make(tmp_path, 10), SIZE, 1)
    index = decoded.index
    for i in (0, 100, len(index.ids) - 1):
        assert decoded.images[i, 0, 0, 0] == int(index.columns["writer"][i][1:5])
        assert decoded.images[i].sum() == decoded.images[i, 0, 0, 0]
    first = index.columns["writer"] == index.columns["writer"][0]
    assert index.labels[first][:62].tolist() == list(range(62))
    assert index.ids[0] == f"{index.columns['writer'][0]}/0"


def test_samples_of_a_user_in_two_files_are_merged_before_counting(tmp_path) -> None:
    make(tmp_path, 8)
    write(tmp_path / "train" / "a.json", {"f9000_00": user([1] * 100), "f9001_00": user([1] * 149)})
    write(tmp_path / "test" / "b.json", {"f9000_00": user([1] * 50), "f9002_00": user([1] * 200)})
    index = scan(tmp_path)
    assert "of the 9 writers" in index.notes[0]
    assert (index.columns["writer"] == "f9001_00").sum() == 149


def test_every_class_is_in_training_even_if_only_one_user_has_it(tmp_path) -> None:
    users = {f"u{i}": user(list(range(61))) for i in range(9)} | {"u9": user(list(range(62)))}
    write(tmp_path / "all.json", users)
    for seed in range(5):
        index = scan(tmp_path, seed)
        assert (index.split[index.columns["writer"] == "u9"] == 0).all()
    assert (scan(tmp_path / "all.json").labels == scan(tmp_path).labels).all()  # one file may be given


def test_identity_depends_on_seed_and_files(tmp_path) -> None:
    first = detect(make(tmp_path, 5)).fingerprint
    assert detect(tmp_path).fingerprint == first
    assert detect(tmp_path, 1).fingerprint != first
    write(tmp_path / "train" / "more.json", {"u": user([1])})
    assert detect(tmp_path).fingerprint != first


def test_hidden_files_are_ignored(tmp_path) -> None:
    make(tmp_path, 3)
    (tmp_path / "train" / "._all_data_0.json").write_bytes(b"\0\5\x16\7")  # macOS writes such files on other disks
    assert len(set(scan(tmp_path).columns["writer"])) == 3


def test_copies_of_the_samples_in_other_folders_are_refused(tmp_path) -> None:
    """LEAF's own data folder contains all_data, train and test with the same samples."""
    write(make(tmp_path, 10) / "all_data" / "0.json", {"f0000_00": user([0])})
    with pytest.raises(FedBMError, match="has the folders all_data, test, train"):
        detect(tmp_path)


def test_a_json_file_next_to_images_is_not_femnist(tmp_path) -> None:
    save(tmp_path / "0.png")
    (tmp_path / "labels.json").write_text("{}")
    with pytest.raises(FedBMError, match="has 0 images in such folders"):
        detect(tmp_path)


def test_a_folder_of_images_may_contain_a_json_file(tmp_path) -> None:
    (flat_folder(tmp_path) / "about.json").write_text("{}")
    assert scan(tmp_path).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("users", "sentence"),
    [
        ({"u": user([0, 62])}, 'at user "u": expected .* y .labels from 0 to 61. of each user'),
        ({"u": {"x": [], "y": "abc"}}, 'cannot be read at user "u"'),
        ({"u": {"x": ["the text of a play"], "y": [1]}}, 'cannot be read at user "u"'),
        ({"u": {"x": [[0.0, 0.0], [0.0]], "y": [1, 2]}}, 'cannot be read at user "u"'),
        ({"u": {"x": [[0.0, 0.0]], "y": [1]}}, 'cannot be read at user "u"'),
        ({"v": user([0]), "u": user([0], 255.0)}, 'cannot be read at user "u"'),
        ({"u": user([0]), "v": user([0] * 150)}, "has 1 users with fewer than 150 samples, but at least 3"),
        ({"u": user([0]), "v": user([0]), "w": user([0])}, 'has no training image of class "1"'),
    ],
)
def test_wrong_files_are_refused(tmp_path, users, sentence) -> None:
    write(tmp_path / "all.json", users)
    with pytest.raises(FedBMError, match=sentence):
        scan(tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"users": []}', "{", '{"user_data": []}'])
def test_other_json_files_are_refused(tmp_path, text) -> None:
    (tmp_path / "all.json").write_text(text)
    with pytest.raises(FedBMError, match=r"cannot be read|cannot read"):
        scan(tmp_path)
