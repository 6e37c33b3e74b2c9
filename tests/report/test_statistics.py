"""Paired t-tests and Holm's correction, against hand-worked numbers and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from fedbm.report.statistics import Spread, holm, paired, spread, spread_or_none


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
def test_the_last_digits_of_equal_differences_are_no_spread(ours: tuple[float, ...], theirs: tuple[float, ...]) -> None:
    """Taken for one, they would make p nearly 0."""
    found = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert found is not None
    assert (found.p, found.size) == (None, None)
    assert found.low == found.high == found.mean == pytest.approx(ours[0] - theirs[0])


values = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=3, max_size=8)


@given(values, values)
def test_as_scipy_has_it(x: list[float], y: list[float]) -> None:
    n = min(len(x), len(y))
    found = paired(dict(enumerate(x[:n])), dict(enumerate(y[:n])))
    assert found is not None
    if found.p is not None:
        assert found.p == pytest.approx(float(ttest_rel(x[:n], y[:n]).pvalue), abs=1e-9)


def test_holm_by_hand() -> None:
    """0.01·4, 0.02·3, 0.03·2 = 0.06, and 0.04·1 not below the one before."""
    assert holm([0.04, 0.01, None, 0.03, 0.02]) == pytest.approx([0.06, 0.04, None, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([None]) == [None]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_holm_never_helps_and_keeps_the_order(ps: list[float | None]) -> None:
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
