"""Paired t-tests and Holm's correction, against hand-worked numbers and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test, ttest_rel

from fedbm.utils.statistics import Spread, holm, paired, seeds_needed, sign_flip, spread, spread_or_none


def test_three_differences_by_hand() -> None:
    """1, 2, 3: mean 2, std 1, t = 2√3; with two degrees of freedom p = 1 − t/√(t² + 2), and t₀.₉₇₅ = 4.3027."""
    found = paired({0: 5.0, 1: 7.0, 2: 9.0}, {0: 4.0, 1: 5.0, 2: 6.0})
    assert found is not None
    t = 2 * math.sqrt(3)
    assert (found.n, found.mean, found.size) == (3, 2.0, 2.0)
    assert found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert (found.low, found.high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))


def test_only_seeds_that_both_have_are_paired() -> None:
    found = paired({0: 1.0, 1: 2.0, 7: 9.0}, {1: 1.0, 0: 0.5, 8: 3.0})
    assert found is not None
    assert (found.n, found.mean) == (2, 0.75)
    assert paired({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("ours", [{0: 1.0}, {0: 1.0, 1: 2.0, 2: 3.0}])
def test_nothing_is_tested_without_spread(ours: dict[int, float]) -> None:
    found = paired(ours, {seed: value - 0.5 for seed, value in ours.items()})
    assert found is not None
    assert (found.mean, found.p, found.size) == (0.5, None, None)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((0.1, 0.1, 0.1), (0.0, 0.0, 0.0)),  # their mean is 0.10000000000000002
        ((301 / 360, 296 / 360, 310 / 360), (294 / 360, 289 / 360, 303 / 360)),  # 7 of 360 images each time
    ],
)
def test_rounding_errors_of_equal_differences_are_ignored(ours: tuple[float, ...], theirs: tuple[float, ...]) -> None:
    """Otherwise p would be nearly 0."""
    found = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert found is not None
    assert (found.p, found.size) == (None, None)
    assert found.low == found.high == found.mean == pytest.approx(ours[0] - theirs[0])


values = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=3, max_size=8)


@given(values, values)
def test_paired_agrees_with_scipy(x: list[float], y: list[float]) -> None:
    n = min(len(x), len(y))
    found = paired(dict(enumerate(x[:n])), dict(enumerate(y[:n])))
    assert found is not None
    if found.p is not None:
        assert found.p == pytest.approx(float(ttest_rel(x[:n], y[:n]).pvalue), abs=1e-9)


def test_holm_by_hand() -> None:
    """0.01·4, 0.02·3, 0.03·2 = 0.06, and 0.04·1 is raised to the value before it."""
    assert holm([0.04, 0.01, None, 0.03, 0.02]) == pytest.approx([0.06, 0.04, None, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([None]) == [None]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_holm_never_lowers_p_and_keeps_the_order(ps: list[float | None]) -> None:
    corrected = holm(ps)
    pairs = sorted((p, c) for p, c in zip(ps, corrected, strict=True) if p is not None and c is not None)
    assert all(p <= c <= 1 for p, c in pairs)
    assert [c for _, c in pairs] == sorted(c for _, c in pairs)


def test_spread_worked_by_hand() -> None:
    """2, 4, 9: mean 5; deviations −3, −1, 4; 26 / 2 = 13."""
    assert spread([2, 4, 9]) == Spread(5.0, 13**0.5, 3, 2, 9)
    assert spread([0.4]).std is None
    assert spread_or_none([0.1, None]) is None
    assert spread_or_none([]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_spread_agrees_with_numpy(values: list[float]) -> None:
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.std == pytest.approx(np.std(values, ddof=1), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0, 3.0], 2 / 8),  # only +++ and −−− reach 6
        ([1.0, -1.0, 2.0], 6 / 8),  # |±1 ± 1 ± 2| is 4, 0, 2, 2, 2, 2, 0, 4; six reach 2
        ([0.0, 0.0], 1.0),
        ([5.0], 1.0),
        ([0.1] * 10, 2 / 1024),
        ([0.3] * 9 + [-0.1], 4 / 1024),  # all with the same sign, and the last with either sign
    ],
)
def test_sign_flips_by_hand(differences: list[float], p: float) -> None:
    assert sign_flip(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0)) == p


def test_sign_flips_agree_with_scipy() -> None:
    differences = [0.12, -0.03, 0.07, 0.2, 0.01, -0.05, 0.11, 0.04]
    theirs = permutation_test(
        (np.array(differences),), lambda x, axis: x.sum(axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip(dict(enumerate(differences)), dict.fromkeys(range(8), 0.0)) == pytest.approx(theirs.pvalue)


def test_sign_flips_take_shared_seeds_and_not_too_many() -> None:
    assert sign_flip({0: 1.0, 3: 2.0}, {3: 1.0, 5: 0.0}) == 1.0
    assert sign_flip({0: 1.0}, {1: 1.0}) is None
    assert sign_flip(dict.fromkeys(range(17), 1.0), dict.fromkeys(range(17), 0.0)) is None


@pytest.mark.parametrize(("size", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (-1.0, 10), (100.0, 3)])
def test_seeds_for_a_power_of_80_percent(size: float, n: int) -> None:
    """Cohen's small, medium and large effects: the numbers of pairs that tables of power give."""
    assert seeds_needed(size, 0.05) == n


def test_seeds_beyond_reach_are_not_counted() -> None:
    assert seeds_needed(0.001, 0.05) is None
    assert (seeds_needed(1.0, 0.05 / 18) or 0) > 10
