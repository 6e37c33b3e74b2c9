from __future__ import annotations

import numpy as np
import pytest

from fedbm.data.readers.sample_index import SampleIndex, make_stream
from fedbm.data.split_choice import check_split_option, choose_split, find_group_column
from fedbm.data.splits import find_shared_groups
from fedbm.errors import FedBMError


def index(split=None, **columns) -> SampleIndex:
    """Ten patients, two samples each, one of either class."""
    return SampleIndex(
        classes=("a", "b"),
        labels=np.tile([0, 1], 10),
        split=None if split is None else np.array(split, dtype=np.uint8),
        ids=[f"{i}.png" for i in range(20)],
        stream=make_stream([]),
        columns={name: np.array(values, dtype=np.str_) for name, values in columns.items()},
    )


PATIENTS = np.repeat(np.arange(10), 2)
OFFICIAL = [0] * 13 + [1] * 2 + [2] * 5  # patients 6 and 7 are on two sides


def sizes(split) -> list[int]:
    return np.bincount(split).tolist()


def test_auto_takes_the_sources_own_split_and_says_what_it_shares() -> None:
    made, notes = choose_split(index(OFFICIAL, patient=PATIENTS), "auto", None, 0, "clinic")
    assert made.tolist() == OFFICIAL
    assert notes == (
        "2 of the 10 values of patient are on more than one side of the split of clinic, so scores may be too good: "
        'split = "grouped" keeps them together',
    )
    assert choose_split(index(OFFICIAL), "official", None, 0, "clinic")[1] == ()


def test_auto_groups_where_a_column_is_known_and_stratifies_else() -> None:
    made, notes = choose_split(index(patient=PATIENTS, site=["x"] * 20), "auto", None, 0, "clinic")
    assert find_shared_groups(made, PATIENTS.astype(np.str_)) == []
    assert sizes(made) == [14, 2, 4]
    assert notes == ("clinic is split 7:1:2 with seed 0 so that none of its 10 values of patient is on two sides",)
    made, notes = choose_split(index(site=["x"] * 20), "auto", None, 3, "clinic")
    assert sizes(made) == [14, 2, 4]
    assert notes == ("clinic brings no split: each class was cut 7:1:2 with seed 3",)


def test_a_group_that_is_named_is_kept_together_whatever_the_source_says() -> None:
    room = np.repeat(np.arange(5), 4)
    made, _ = choose_split(index(OFFICIAL, patient=PATIENTS, room=room), "auto", "room", 0, "clinic")
    assert find_shared_groups(made, room.astype(np.str_)) == []
    made, _ = choose_split(index(OFFICIAL, patient=PATIENTS), "grouped", None, 0, "clinic")
    assert find_shared_groups(made, PATIENTS.astype(np.str_)) == []


def test_stratified_means_it_and_says_what_it_shares() -> None:
    made, notes = choose_split(index(OFFICIAL, patient=PATIENTS), "stratified", None, 0, "clinic")
    assert sizes(made) == [14, 2, 4]
    assert notes[0] == "clinic is split anew: each class was cut 7:1:2 with seed 0"
    assert "values of patient are on more than one side" in notes[1]


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
def test_columns_that_belong_together_are_known_by_name(columns, found) -> None:
    assert find_group_column(columns) == found


@pytest.mark.parametrize(
    ("source", "split", "group", "sentence"),
    [
        (index(), "official", None, "clinic brings no split of its own: say split"),
        (index(), "grouped", None, "needs group = COLUMN: it has no columns, metadata = FILE adds some"),
        (index(site=["x"] * 20), "grouped", None, "needs group = COLUMN: its columns are site"),
        (
            index(site=["x"] * 20),
            "auto",
            "sight",
            r'has no column "sight" \(did you mean "site"\?\): its columns are',
        ),
        (
            index(patient=["", *"x" * 19]),
            "auto",
            None,
            r"1 samples of clinic have no patient, the first is 0.png: fill",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(source, split, group, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        choose_split(source, split, group, 0, "clinic")


@pytest.mark.parametrize(
    ("split", "group", "sentence"),
    [
        (
            "strat",
            None,
            r'split is "strat", it can be auto, official, stratified or grouped \(did you mean "stratified"',
        ),
        ("official", "patient", 'group = "patient" has no meaning with split = "official": say split = "grouped"'),
    ],
)
def test_a_wrong_choice_is_refused(split, group, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        check_split_option(split, group)
