"""The choice between official, stratified and grouped splits."""

from __future__ import annotations

import numpy as np
import pytest

from fedbm.data.readers.sample_index import SampleIndex
from fedbm.data.splits import choose_split, find_group_columns, find_shared_groups
from fedbm.errors import FedBMError


def make_index(split=None, **columns) -> SampleIndex:
    """Return samples of ten patients, two each, one of either class."""
    return SampleIndex(
        classes=("a", "b"),
        labels=np.tile([0, 1], 10),
        split=None if split is None else np.array(split, dtype=np.uint8),
        ids=[f"{i}.png" for i in range(20)],
        stream=lambda: iter(()),
        columns={name: np.array(values, dtype=np.str_) for name, values in columns.items()},
    )


PATIENTS = np.repeat(np.arange(10), 2)
OFFICIAL = [0] * 13 + [1] * 2 + [2] * 5  # patients 6 and 7 are in two subsets


def sizes(split) -> list[int]:
    return np.bincount(split).tolist()


def test_auto_uses_the_official_split_and_warns_about_shared_groups() -> None:
    made, notes = choose_split(make_index(OFFICIAL, patient=PATIENTS), "auto", None, 0, "clinic")
    assert made.tolist() == OFFICIAL
    assert notes == (
        "2 of the 10 values of patient are in more than one of train, val and test of clinic, so scores may be too "
        'high: split = "grouped" keeps each in one of them',
    )
    assert choose_split(make_index(OFFICIAL), "official", None, 0, "clinic")[1] == ()


def test_auto_groups_by_a_known_column_and_else_stratifies() -> None:
    made, notes = choose_split(make_index(patient=PATIENTS, site=["x"] * 20), "auto", None, 0, "clinic")
    assert find_shared_groups(made, PATIENTS.astype(np.str_)) == []
    assert sizes(made) == [14, 2, 4]
    assert notes == ("clinic was split 7:1:2 with seed 0; each of the 10 values of patient is in one subset",)
    made, notes = choose_split(make_index(site=["x"] * 20), "auto", None, 3, "clinic")
    assert sizes(made) == [14, 2, 4]
    assert notes == ("each class of clinic was split 7:1:2 with seed 3",)


def test_a_given_group_overrides_the_official_split() -> None:
    room = np.repeat(np.arange(5), 4)
    made, _ = choose_split(make_index(OFFICIAL, patient=PATIENTS, room=room), "auto", "room", 0, "clinic")
    assert find_shared_groups(made, room.astype(np.str_)) == []
    made, _ = choose_split(make_index(OFFICIAL, patient=PATIENTS), "grouped", None, 0, "clinic")
    assert find_shared_groups(made, PATIENTS.astype(np.str_)) == []


def test_stratified_overrides_the_official_split_and_warns_about_shared_groups() -> None:
    made, notes = choose_split(make_index(OFFICIAL, patient=PATIENTS), "stratified", None, 0, "clinic")
    assert sizes(made) == [14, 2, 4]
    assert notes[0] == "each class of clinic was split 7:1:2 with seed 0"
    assert "values of patient are in more than one of train, val and test" in notes[1]


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({}, ""),
        ({"site": 0}, ""),
        ({"site": 0, "Patient_ID": 0}, "Patient_ID"),
        ({"PatientID": 0}, "PatientID"),
        ({"patientId": 0}, "patientId"),
        ({"Patient ID": 0}, "Patient ID"),
        ({"lesion-id": 0}, "lesion-id"),
        ({"SubjectID": 0}, "SubjectID"),
        ({"outpatient": 0, "id": 0}, ""),
        ({"writer": 0}, "writer"),
        ({"lesion": 0, "patient": 0}, "patient"),  # one patient may have several lesions
    ],
)
def test_group_columns_are_recognised_by_name(columns, found) -> None:
    assert find_group_columns(columns)[:1] == ([found] if found else [])


@pytest.mark.parametrize(
    ("source", "split", "group", "sentence"),
    [
        (make_index(), "official", None, "clinic has no split of its own: use split"),
        (make_index(), "grouped", None, r'clinic has no column "" for a grouped split \(its columns: \): set group'),
        (
            make_index(site=["x"] * 20),
            "grouped",
            None,
            r'clinic has no column "" for a grouped split \(its columns: site\)',
        ),
        (
            make_index(site=["x"] * 20),
            "auto",
            "sight",
            r'has no column "sight" \(did you mean "site"\?\) for a grouped split',
        ),
        (
            make_index(patient=["", *"x" * 19]),
            "auto",
            None,
            r"1 samples of clinic have no patient, the first is 0.png: fill",
        ),
    ],
)
def test_impossible_splits_are_refused(source, split, group, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        choose_split(source, split, group, 0, "clinic")


def test_val_is_cut_from_train_by_group() -> None:
    source = make_index([0] * 16 + [2] * 4, patient=PATIENTS)
    made, notes = choose_split(source, "auto", None, 0, "clinic")
    assert sizes(made) == [14, 2, 4]
    assert made[16:].tolist() == [2] * 4
    assert find_shared_groups(made, PATIENTS.astype(np.str_)) == []
    assert notes == ("clinic has no val images: 2 of its 16 train images became val, with seed 0",)
    with pytest.raises(
        FedBMError,
        match='class "a" has images of only 1 different values of patient, but each of 2 subsets needs one: add',
    ):
        choose_split(make_index([0] * 16 + [2] * 4, patient=["x"] * 16 + ["y"] * 4), "auto", None, 0, "clinic")


def test_a_class_with_one_training_image_keeps_it() -> None:
    source = make_index([0, 0] + [2, 0] * 8 + [2, 2])
    made, _ = choose_split(source, "official", None, 0, "clinic")
    assert made[0] == 0
    assert np.bincount(made[source.labels == 1]).tolist() == [8, 1, 1]
