from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbm.data.split import FRACTIONS, check_usable, stratified
from fedbm.errors import FedBMError


def counts(labels, split):
    return [np.bincount(labels[split == side], minlength=labels.max() + 1).tolist() for side in range(3)]


def of_sizes(*sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


def test_each_class_is_cut_seven_one_two() -> None:
    labels = of_sizes(10, 20, 100)
    assert counts(labels, stratified(labels, seed=0)) == [[7, 14, 70], [1, 2, 10], [2, 4, 20]]


def test_rounding_owes_what_it_took() -> None:
    """Quotas of 15 are (10.5, 1.5, 3). Class 0: (11, 1, 3), val is owed ½. Class 1 has targets (10, 2, 3)."""
    labels = of_sizes(15, 15)
    assert counts(labels, stratified(labels, seed=3)) == [[11, 10], [1, 2], [3, 3]]


def test_the_smallest_class_has_one_on_every_side() -> None:
    labels = of_sizes(3, 50)
    train, val, test = counts(labels, stratified(labels, seed=0))
    assert (train[0], val[0], test[0]) == (1, 1, 1)


def test_the_seed_decides_who_is_where() -> None:
    labels = of_sizes(30, 30)
    first = stratified(labels, seed=5)
    assert (stratified(labels, seed=5) == first).all()
    assert (stratified(labels, seed=6) != first).any()
    assert first.dtype == np.uint8


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(10, 80), min_size=1, max_size=20), st.integers(0, 1000))
def test_classes_and_totals_are_within_rounding(sizes, seed) -> None:
    labels = of_sizes(*sizes)
    per_class = np.array(counts(labels, stratified(labels, seed=seed)))
    quota = np.outer(FRACTIONS, sizes)
    assert (per_class.sum(axis=0) == sizes).all()
    assert (np.abs(per_class - quota) <= 2).all()
    assert (np.abs(per_class.sum(axis=1) - quota.sum(axis=1)) <= 1 + 1e-9).all()


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(3, 9), min_size=1, max_size=30))
def test_every_side_has_every_class_however_small(sizes) -> None:
    labels = of_sizes(*sizes)
    assert np.array(counts(labels, stratified(labels, seed=0))).min() >= 1


def test_two_samples_cannot_be_split_in_three() -> None:
    with pytest.raises(FedBMError, match="class number 1 has 2 samples"):
        stratified(of_sizes(5, 2), seed=0)


@pytest.mark.parametrize(
    ("labels", "split", "classes", "sentence"),
    [
        ([0, 0, 0], None, ["a"], r"here holds 1 class \(a\)"),
        ([0, 0, 0, 1, 1], None, ["a", "b"], 'class "b" of here has 2 images'),
        ([0, 0, 0, 1, 1], [0, 1, 2, 1, 2], ["a", "b"], 'here has no training image of class "b"'),
        ([0, 1, 0], [0, 0, 1], ["a", "b"], "here has no test images"),
        ([0, 1, 0], [0, 0, 2], ["a", "b"], "here has no val images"),
    ],
)
def test_unusable_data_is_named(labels, split, classes, sentence) -> None:
    split = None if split is None else np.array(split, dtype=np.uint8)
    with pytest.raises(FedBMError, match=sentence):
        check_usable(np.array(labels), split, classes, "here")


def test_a_class_may_be_missing_from_val_and_test() -> None:
    check_usable(np.array([0, 1, 0, 0]), np.array([0, 0, 1, 2], dtype=np.uint8), ["a", "b"], "here")
