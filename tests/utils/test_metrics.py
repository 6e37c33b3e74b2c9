"""Metrics equal scikit-learn's, also with classes missing from the truth, from the predictions, or both."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score, roc_auc_score

from fedbm.utils.metrics import auc, f1_error, mean_ranks, mean_scores, score, scores_from_confusion


@given(st.data())
def test_equal_to_scikit_learn_over_present_classes(data):
    classes = data.draw(st.integers(2, 6))
    n = data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    truth = rng.choice(rng.choice(classes, size=rng.integers(1, classes + 1), replace=False), size=n)
    probabilities = rng.dirichlet(np.ones(classes), size=n)
    found, matrix = score(truth, probabilities)
    predicted, present = probabilities.argmax(1), np.unique(truth)
    common = {"labels": present, "average": "macro", "zero_division": 0}
    assert matrix.sum() == n
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert found["f1"] == pytest.approx(f1_score(truth, predicted, **common))
    assert found["recall"] == pytest.approx(recall_score(truth, predicted, **common))
    assert found["precision"] == pytest.approx(precision_score(truth, predicted, **common))
    areas = [roc_auc_score(truth == k, probabilities[:, k]) for k in present if not (truth == k).all()]
    assert found["auc"] == (pytest.approx(np.mean(areas)) if areas else None)


@given(arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.integers(0, 5)))
def test_mean_ranks_are_those_of_scipy_to_the_bit(values):
    assert np.array_equal(mean_ranks(values), rankdata(values, axis=0))


def test_scores_by_hand_with_a_missing_class():
    """Truth 0 0 1 1, predicted 0 2 1 1: recalls ½ and 1, F1 ⅔ and 1. Class 2 is missing and counts in no mean."""
    scores = scores_from_confusion(np.array([[1, 0, 1], [0, 2, 0], [0, 0, 0]]))
    assert scores["accuracy"] == 0.75
    assert scores["recall"] == 0.75
    assert scores["precision"] == 1.0
    assert scores["f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_auc_is_none_without_negatives_or_with_nan_probabilities():
    assert auc(np.zeros(3, dtype=int), np.full((3, 2), 0.5)) is None
    assert auc(np.array([0, 1]), np.full((2, 2), np.nan)) is None
    with pytest.raises(ValueError, match="no samples"):
        scores_from_confusion(np.zeros((2, 2), dtype=int))


def test_the_error_of_f1_by_hand():
    """One class with share p found: F1 = 2p/(1 + p), so its error is 2/(1 + p)²·√(p(1 − p)/n), here 0.00444."""
    assert f1_error(np.array([[5000, 5000], [0, 0]])) == pytest.approx(2 / 1.5**2 * np.sqrt(0.25 / 10_000), rel=0.1)
    assert f1_error(np.array([[50, 0], [0, 30]])) == 0, "all images are right, whichever are drawn"
    assert f1_error(np.array([[8, 2], [3, 7]])) == f1_error(np.array([[8, 2], [3, 7]])) > 0


def test_mean_scores_keeps_none():
    one = {"accuracy": 0.5, "f1": 0.5, "auc": None, "recall": 0.5, "precision": 0.5}
    two = {"accuracy": 1.0, "f1": 1.0, "auc": 1.0, "recall": 1.0, "precision": 1.0}
    assert mean_scores([one, two]) == {"accuracy": 0.75, "f1": 0.75, "auc": None, "recall": 0.75, "precision": 0.75}
