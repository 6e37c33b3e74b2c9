"""Scores of a classifier: accuracy, macro precision, recall and F1, and AUC.

Macro means are over the classes present in the truth; a class that is never predicted has precision 0. AUC is the
mean one-vs-rest area over classes that have both positives and negatives, or None if there is no such class. The
values equal scikit-learn's with `labels` = the present classes and `zero_division` = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NAMES = ("accuracy", "f1", "auc", "recall", "precision")


def confusion_matrix(truth: Array, predicted: Array, classes: int) -> Array:
    """Return counts [K,K]; rows are the truth."""
    return np.bincount(truth * classes + predicted, minlength=classes**2).reshape(classes, classes)


def scores_from_confusion(matrix: Array) -> dict[str, float]:
    """Return accuracy, f1, recall and precision of a confusion matrix.

    >>> scores_from_confusion(np.array([[8, 2], [0, 10]]))["accuracy"]
    0.9
    """
    hits, truths, guesses = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    present = truths > 0
    if not present.any():
        raise ValueError("no samples to score")
    recall = hits[present] / truths[present]
    precision = hits[present] / np.maximum(guesses[present], 1)
    f1 = 2 * hits[present] / (truths[present] + guesses[present])
    return {
        "accuracy": float(hits.sum() / truths.sum()),
        "f1": float(f1.mean()),
        "recall": float(recall.mean()),
        "precision": float(precision.mean()),
    }


def f1_error(matrix: Array, draws: int = 1000) -> float:
    """Return the standard error of macro-F1 from the choice of images: its spread if they are drawn again (bootstrap).

    The random numbers are always the same. A class without an image in a draw does not count in it.
    """
    classes, images = len(matrix), int(matrix.sum())
    drawn = np.random.default_rng(0).multinomial(images, matrix.ravel() / images, size=draws)
    drawn = drawn.reshape(draws, classes, classes)
    hits, truths, guesses = np.diagonal(drawn, axis1=1, axis2=2), drawn.sum(axis=2), drawn.sum(axis=1)
    f1 = 2 * hits / np.maximum(truths + guesses, 1)
    return float(np.std(np.average(f1, axis=1, weights=truths > 0)))


def auc(truth: Array, probabilities: Array) -> float | None:
    """Return the mean one-vs-rest area under the ROC curve over classes with positives and negatives.

    Uses ranks (Mann–Whitney): the area of class k is (Σ ranks of its samples − P(P+1)/2) / (P·N), ties at mean rank.
    """
    positive = truth[:, None] == np.arange(probabilities.shape[1])
    counts = positive.sum(axis=0)
    usable = (counts > 0) & (counts < len(truth))
    if not usable.any() or not np.isfinite(probabilities).all():
        return None
    ranks = np.where(positive, mean_ranks(probabilities), 0).sum(axis=0)
    areas = (ranks - counts * (counts + 1) / 2)[usable] / (counts * (len(truth) - counts))[usable]
    return float(areas.mean())


def mean_ranks(values: Array) -> Array:
    """Return the rank of every value in its column; equal values have their mean rank.

    `scipy.stats.rankdata` returns the same, but takes a second to import.

    >>> mean_ranks(np.array([[0.2], [0.1], [0.2]])).tolist()
    [[2.5], [1.0], [2.5]]
    """
    ranks = []
    for column in values.T:
        _, group, counts = np.unique(column, return_inverse=True, return_counts=True)
        ranks.append((counts.cumsum() - (counts - 1) / 2)[group])
    return np.stack(ranks, axis=1)


def score(truth: Array, probabilities: Array) -> tuple[dict[str, float | None], Array]:
    """Return all metrics of NAMES and the confusion matrix, from class probabilities [n,K]."""
    matrix = confusion_matrix(truth, probabilities.argmax(axis=1), probabilities.shape[1])
    values: dict[str, float | None] = {**scores_from_confusion(matrix), "auc": auc(truth, probabilities)}
    return {name: values[name] for name in NAMES}, matrix


def mean_scores(scores: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Average each metric over several models. A metric that is None for one of them is None."""
    means: dict[str, float | None] = {}
    for name in NAMES:
        values = [s[name] for s in scores]
        means[name] = None if None in values else float(np.mean([v for v in values if v is not None]))
    return means


def label_mix_accuracy(confusion: Array, label_counts: Sequence[float]) -> float | None:
    """Return Σ_k p_k · recall_k: the test set weighted to a client's label shares p_k.

    Classes without a test image do not count. Return None if the client has no other class.

    >>> round(label_mix_accuracy(np.array([[8, 2], [5, 5]]), [3, 1]), 3)
    0.725
    """
    counts = np.asarray(label_counts, dtype=float)
    known = (confusion.sum(axis=1) > 0) & (counts > 0)
    if not known.any():
        return None
    recall = np.diag(confusion)[known] / confusion.sum(axis=1)[known]
    return float(np.average(recall, weights=counts[known]))
