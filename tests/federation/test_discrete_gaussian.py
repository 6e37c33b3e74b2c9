"""The sampler has the exact distribution, its exact path agrees with its fast path, and no seed repeats a draw."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain, repeat

import numpy as np
import pytest
import torch
from scipy import stats

from fedbm.federation.node import discrete_gaussian
from fedbm.federation.node.discrete_gaussian import _exp_bounds, _is_below, sample_discrete_gaussian

SURELY = 1e-9  # a right sampler fails a test about once in a billion runs


def probabilities(sigma: int, values: range) -> list[float]:
    """The exact probabilities of these values, and of all others together."""
    weights = {v: math.exp(-(v**2) / (2 * sigma**2)) for v in range(-60 * sigma, 60 * sigma + 1)}
    total = math.fsum(weights.values())
    inside = [weights[v] / total for v in values]
    return [*inside, 1 - math.fsum(inside)]


def has_the_distribution(sigma: int, drawn: np.ndarray) -> bool:
    """A chi-square test against the exact probabilities, each value a bin of its own."""
    values = range(-3 * sigma, 3 * sigma + 1)
    expected = np.array(probabilities(sigma, values)) * len(drawn)
    counted = [int((drawn == v).sum()) for v in values]
    return stats.chisquare([*counted, len(drawn) - sum(counted)], expected).pvalue > SURELY


@pytest.mark.parametrize("sigma", [1, 2, 3, 5, 8, 13])
def test_it_has_the_exact_distribution(sigma: int) -> None:
    drawn = sample_discrete_gaussian(sigma, 400_000)
    assert len(drawn) == 400_000
    assert has_the_distribution(sigma, drawn)
    assert not has_the_distribution(sigma, np.where(drawn == 0, 1, drawn))


def test_moments_at_the_standard_deviation_in_use() -> None:
    sigma, count = 2**24, 1_000_000
    drawn = sample_discrete_gaussian(sigma, count) / sigma
    assert abs(drawn.mean()) < 6.5 / math.sqrt(count)
    assert abs((drawn**2).mean() - 1) < 6.5 * math.sqrt(2 / count)
    assert abs((drawn**4).mean() - 3) < 8 * math.sqrt(96 / count)
    assert stats.kstest(drawn, "norm").pvalue > SURELY
    neighbours = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(neighbours) < 6.5 / math.sqrt(count)
    last_bits = np.bincount((drawn * sigma).astype(np.int64) % 8, minlength=8)
    assert stats.chisquare(last_bits).pvalue > SURELY


@pytest.mark.parametrize("sigma", [3, 2**24])
def test_whole_numbers_decide_as_floating_point_does(sigma: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin of 1 floating point accepts nothing, so that the exact path decides on every likely candidate."""
    kept = np.random.default_rng(0).integers(2**64, size=2**20, dtype=np.uint64)

    def replay() -> Callable[[int], np.ndarray]:
        places = iter(range(len(kept)))
        return lambda count: kept[[next(places) for _ in range(count)]]

    monkeypatch.setattr(discrete_gaussian, "_random_words", replay())
    fast = sample_discrete_gaussian(sigma, 2000)
    calls: list[int] = []

    def exact(u: int, k: int, exponent: Fraction) -> bool:
        calls.append(k)
        return _is_below(u, k, exponent)

    monkeypatch.setattr(discrete_gaussian, "_is_below", exact)
    monkeypatch.setattr(discrete_gaussian, "_random_words", replay())
    assert sample_discrete_gaussian(sigma, 2000).tolist() == fast.tolist()
    assert not calls
    monkeypatch.setattr(discrete_gaussian, "MARGIN", 1.0)
    monkeypatch.setattr(discrete_gaussian, "_random_words", replay())
    assert sample_discrete_gaussian(sigma, 2000).tolist() == fast.tolist()
    assert len(calls) > 2000


def test_the_exact_path_alone_has_the_exact_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discrete_gaussian, "MARGIN", 1.0)
    assert has_the_distribution(2, sample_discrete_gaussian(2, 20_000))


def words(*given: int) -> Iterator[int]:
    return chain(given, repeat(0))


@pytest.mark.parametrize(("more", "below"), [(0, True), (2**64 - 1, False)])
def test_more_digits_are_drawn_where_the_first_do_not_decide(
    more: int, below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = words(more)
    asked: list[int] = []

    def draw(count: int) -> np.ndarray:
        asked.append(count)
        return np.array([next(drawn)], dtype=np.uint64)

    monkeypatch.setattr(discrete_gaussian, "_random_words", draw)
    tie = math.floor(Fraction(13, 16) * Fraction(math.exp(-0.5)) * 2**53)  # the 53 digits of the probability itself
    decided = [_is_below(tie + offset, 0, Fraction(1, 2)) for offset in (-2, 2)]
    assert (decided, asked) == ([True, False], [])
    assert _is_below(tie, 0, Fraction(1, 2)) is below
    assert asked == [1]


def test_bounds_of_the_exponential_close_in_on_it() -> None:
    for exponent in (Fraction(0), Fraction(1, 7), Fraction(9, 2), Fraction(40)):
        for number, (lower, upper) in zip(range(200), _exp_bounds(exponent), strict=False):
            assert lower <= upper
            assert lower <= Fraction(math.exp(-exponent)) * (1 + Fraction(1, 2**50)), number
            assert upper >= Fraction(math.exp(-exponent)) * (1 - Fraction(1, 2**50)), number
        assert upper - lower < Fraction(1, 2**60)


def test_equal_seeds_give_different_noise() -> None:
    def draw() -> np.ndarray:
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002 (the generator that such a seed would set)
        random.seed(7)
        return sample_discrete_gaussian(2**24, 100)

    assert not (draw() == draw()).any()


@pytest.mark.parametrize("sigma", [0, -1, 2**32 + 1])
def test_sigma_out_of_range_is_refused(sigma: int) -> None:
    with pytest.raises(ValueError, match="sigma must be from 1"):
        sample_discrete_gaussian(sigma, 1)


def test_none_and_few() -> None:
    assert sample_discrete_gaussian(5, 0).tolist() == []
    assert sample_discrete_gaussian(2**32, 3).shape == (3,)
