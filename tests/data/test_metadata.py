"""Joining metadata to samples by name."""

from __future__ import annotations

import pytest
from pictures import save

from fedbm.data.dataset import load
from fedbm.data.readers.table import join_metadata
from fedbm.errors import FedBMError


def make(root, text: str):
    (root / "about.csv").write_text(text)
    return root / "about.csv"


@pytest.mark.parametrize("ids", [["a.jpg", "b.jpg"], ["a", "b"], ["train/cat/a.jpg", "test/dog/b.png"]])
@pytest.mark.parametrize("names", [["a.jpg", "b.jpg"], ["a", "b"]])
def test_columns_are_joined_by_name_with_or_without_ending_and_folder(tmp_path, ids, names) -> None:
    table = make(tmp_path, f"patient,image,site\np2,{names[1]},north\np1,{names[0]},south\np3,other,west\n")
    joined = join_metadata(table, ids)
    assert {name: values.tolist() for name, values in joined.items()} == {
        "patient": ["p1", "p2"],
        "site": ["south", "north"],
    }


def test_names_may_contain_dots(tmp_path) -> None:
    table = make(tmp_path, "image,site\n1.2.7,north\n1.2.8,south\n")
    for ids in (
        ["1.2.8", "1.2.7"],
        ["1.2.8.dcm", "1.2.7.dcm"],
        ["ct/1.2.8.dcm", "ct/1.2.7.dcm"],
        ["a/1.2.8", "b/1.2.7"],
    ):
        assert join_metadata(table, ids)["site"].tolist() == ["south", "north"]


def test_samples_with_the_same_name_in_two_folders_are_distinguished(tmp_path) -> None:
    table = make(tmp_path, "image,site\ncat/1,north\ndog/1,south\n")
    assert join_metadata(table, ["dog/1.png", "cat/1.png"])["site"].tolist() == ["south", "north"]


def test_every_column_keeps_its_name(tmp_path) -> None:
    table = make(tmp_path, "lesion_id,image_id,dx,dx_type,age,sex,localization\nH1,I1,nv,histo,40,male,back\n")
    assert {name: values.tolist() for name, values in join_metadata(table, ["I1.jpg"]).items()} == {
        "lesion_id": ["H1"],
        "dx": ["nv"],
        "dx_type": ["histo"],
        "age": ["40"],
        "sex": ["male"],
        "localization": ["back"],
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "image,site\nx,north\n",
            r'no column of .*about.csv names every sample exactly once: .* 0 of the 2 samples .* but not "a.jpg"',
        ),
        ("image,site\na,north\n", r'the column image names 1 of the 2 samples exactly once, but not "b.jpg"'),
        ("image,site\na,north\nb,\n", None),
        ("remark,image,site\n.,a,north\n/,b,\n", None),
        (
            "image,site\nb,north\na,north\nb,south\n",
            r'the column image names 1 of the 2 samples exactly once, but not "b.jpg"',
        ),
    ],
)
def test_missing_and_repeated_samples_are_refused(tmp_path, text, sentence) -> None:
    table = make(tmp_path, text)
    if sentence is None:
        assert join_metadata(table, ["a.jpg", "b.jpg"])["site"].tolist() == ["north", ""]
        return
    with pytest.raises(FedBMError, match=sentence):
        join_metadata(table, ["a.jpg", "b.jpg"])


def test_two_columns_of_one_name_have_the_same_values(tmp_path) -> None:
    """Otherwise the patients of the table would be replaced, and could be in several subsets."""
    names = [f"{i}.png" for i in range(12)]
    for i, name in enumerate(names):
        save(tmp_path / name, i)
    rows = "\n".join(f"{name},{i % 2},p{i // 2}" for i, name in enumerate(names))
    (tmp_path / "scans.csv").write_text(f"path,label,patient\n{rows}")
    same = "\n".join(f"{name},p{i // 2},{i}" for i, name in enumerate(names))
    options = {"metadata": make(tmp_path, f"image,patient,age\n{same}"), "size": 16, "cache": tmp_path / "cache"}
    assert list(load(tmp_path / "scans.csv", **options).columns) == ["patient", "age"]
    make(tmp_path, f"image,patient,age\n{same.replace('p5', 'q5')}")
    with pytest.raises(
        FedBMError, match='the column "patient" has other values in about.csv than in scans: rename or remove one'
    ):
        load(tmp_path / "scans.csv", **options)


def test_a_table_is_looked_for_in_the_data_folder(tmp_path) -> None:
    """A shipped experiment names a table without knowing where the user's data are."""
    folder = tmp_path / "data"
    folder.mkdir()
    make(folder, "image,site\n" + "\n".join(f"digit {i},{'north' if i % 2 else 'south'}" for i in range(1797)))
    found = load("digits", metadata="about.csv", folder=folder, cache=tmp_path / "cache")
    assert set(found.columns["site"]) == {"north", "south"}
    with pytest.raises(FedBMError, match=r"cannot read other.csv"):
        load("digits", metadata="other.csv", folder=folder, cache=tmp_path / "cache")
