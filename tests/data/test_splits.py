"""Stratified and grouped splits, and checks that data can be used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbm.data.splits import FRACTIONS, check_classes, find_shared_groups, split_grouped, split_stratified
from fedbm.errors import FedBMError


def counts(labels, split):
    return [np.bincount(labels[split == code], minlength=labels.max() + 1).tolist() for code in range(3)]


def labels_of_sizes(*sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


def test_each_class_is_split_seven_one_two() -> None:
    labels = labels_of_sizes(10, 20, 100)
    assert counts(labels, split_stratified(labels, seed=0)) == [[7, 14, 70], [1, 2, 10], [2, 4, 20]]


def test_rounding_errors_are_carried_over() -> None:
    """Quotas of 15 are (10.5, 1.5, 3). Class 0 gets (11, 1, 3), so the targets of class 1 are (10, 2, 3)."""
    labels = labels_of_sizes(15, 15)
    assert counts(labels, split_stratified(labels, seed=3)) == [[11, 10], [1, 2], [3, 3]]


def test_the_smallest_class_has_one_sample_in_every_subset() -> None:
    labels = labels_of_sizes(3, 50)
    train, val, test = counts(labels, split_stratified(labels, seed=0))
    assert (train[0], val[0], test[0]) == (1, 1, 1)


def test_the_split_depends_on_the_seed() -> None:
    labels = labels_of_sizes(30, 30)
    first = split_stratified(labels, seed=5)
    assert (split_stratified(labels, seed=5) == first).all()
    assert (split_stratified(labels, seed=6) != first).any()
    assert first.dtype == np.uint8


@settings(derandomize=True)
@given(st.lists(st.integers(10, 80), min_size=1, max_size=20), st.integers(0, 1000))
def test_classes_and_totals_are_within_rounding(sizes, seed) -> None:
    labels = labels_of_sizes(*sizes)
    per_class = np.array(counts(labels, split_stratified(labels, seed=seed)))
    quota = np.outer(FRACTIONS, sizes)
    assert (per_class.sum(axis=0) == sizes).all()
    assert (np.abs(per_class - quota) <= 2).all()
    assert (np.abs(per_class.sum(axis=1) - quota.sum(axis=1)) <= 1 + 1e-9).all()


@settings(derandomize=True)
@given(st.lists(st.integers(3, 9), min_size=1, max_size=30))
def test_every_subset_has_every_class(sizes) -> None:
    labels = labels_of_sizes(*sizes)
    assert np.array(counts(labels, split_stratified(labels, seed=0))).min() >= 1


def in_groups(*members):
    """Return labels and groups from class letters for each group: in_groups("ab", "a") has 3 samples in 2 groups."""
    pairs = [(ord(letter) - ord("a"), f"g{g}") for g, letters in enumerate(members) for letter in letters]
    return np.array([label for label, _ in pairs]), np.array([group for _, group in pairs])


def split_groups(labels, groups, seed=0):
    classes = [chr(ord("a") + k) for k in range(labels.max() + 1)]
    return split_grouped(labels, groups, classes, column="patient", seed=seed)


def test_groups_of_one_sample_are_split_like_samples() -> None:
    labels = labels_of_sizes(10, 20, 100)
    made = split_groups(labels, np.arange(130).astype(np.str_))
    assert counts(labels, made) == [[7, 14, 70], [1, 2, 10], [2, 4, 20]]


def test_the_smallest_groups_put_a_class_into_every_subset() -> None:
    """Groups of size 1 go to val, test and train; then 5 and 2 go to train, which misses 6 and 1."""
    labels, groups = in_groups("aaaaa", "aa", "a", "a", "a", *"bbb")
    made = split_groups(labels, groups)
    assert counts(labels, made) == [[8, 1], [1, 1], [1, 1]]


def test_a_large_group_goes_to_train() -> None:
    """Quotas of 10 are 7, 1, 2. Groups of size 1 go to val, test and train, then 7 goes to train, which misses 6."""
    labels, groups = in_groups("aaaaaaa", "a", "a", "a", "bbbbbbb", "b", "b", "b")
    made = split_groups(labels, groups)
    assert counts(labels, made) == [[8, 8], [1, 1], [1, 1]]


def test_the_seed_decides_between_equal_groups() -> None:
    labels, groups = in_groups(*["ab"] * 30)
    first = split_groups(labels, groups)
    assert (split_groups(labels, groups) == first).all()
    assert (split_groups(labels, groups, seed=1) != first).any()
    assert first.dtype == np.uint8


@settings(derandomize=True)
@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=40), st.integers(0, 99))
def test_no_group_is_shared_and_every_subset_has_every_class(members, seed) -> None:
    labels, groups = in_groups(*["abc"] * 3, *members)
    made = split_groups(labels, groups, seed)
    assert find_shared_groups(made, groups) == []
    assert np.array(counts(labels, made)).min() >= 1


@settings(derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=40, max_size=80), st.integers(0, 99))
def test_classes_of_many_small_groups_are_near_their_quotas(sizes, seed) -> None:
    labels, groups = in_groups(*[("a" if g % 2 else "b") * size for g, size in enumerate(sizes)])
    per_class = np.array(counts(labels, split_groups(labels, groups, seed)))
    quota = np.outer(FRACTIONS, per_class.sum(axis=0))
    assert (np.abs(per_class - quota) <= 4).all()  # at most one group


def test_groups_of_every_size_are_split_seven_one_two() -> None:
    """If large groups gathered in training, test images would come from other groups than training images."""
    labels, groups = in_groups(*["aaaa"] * 100, *["a"] * 100, *["bb"] * 100)
    made = split_groups(labels, groups)
    names, sizes = np.unique(groups, return_counts=True)
    subset_of = dict(zip(groups, made, strict=True))
    for size in (4, 1, 2):
        found = np.bincount([subset_of[name] for name in names[sizes == size]], minlength=3)
        assert np.abs(found - [70, 10, 20]).max() <= 3


def test_a_class_with_two_groups_is_refused() -> None:
    labels, groups = in_groups("a", "a", "a", "bb", "bbb")
    with pytest.raises(
        FedBMError,
        match='class "b" has images of only 2 different values of patient, but each of 3 subsets needs one: add',
    ):
        split_groups(labels, groups)


def test_shared_groups_are_found() -> None:
    split = np.array([0, 0, 1, 2, 2], dtype=np.uint8)
    assert find_shared_groups(split, np.array(["x", "y", "x", "z", "z"])) == ["x"]
    assert find_shared_groups(split, np.array(["x", "x", "y", "z", "z"])) == []
    assert find_shared_groups(split, np.array(["", "y", "", "z", "z"])) == []


@pytest.mark.parametrize(
    ("labels", "split", "classes", "sentence"),
    [
        ([0, 0, 0], None, ["a"], r"here has 1 class \(a\)"),
        ([0, 0, 0, 1, 1], None, ["a", "b"], 'here has too few images of class "b": 2'),
        ([0, 0, 0, 1, 1], [0, 1, 2, 1, 2], ["a", "b"], 'here has no training image of class "b"'),
    ],
)
def test_unusable_data_is_refused(labels, split, classes, sentence) -> None:
    split = None if split is None else np.array(split, dtype=np.uint8)
    with pytest.raises(FedBMError, match=sentence):
        check_classes(np.array(labels), split, classes, "here")


def test_a_class_may_be_missing_from_val_and_test() -> None:
    check_classes(np.array([0, 1, 0, 0]), np.array([0, 0, 1, 2], dtype=np.uint8), ["a", "b"], "here")
