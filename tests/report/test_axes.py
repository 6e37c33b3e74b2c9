"""Axes: round numbers, as many as fit, whatever the values are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbm.report.figures.axes import LABEL_GAP, Scale, fitting_ticks, round_ticks, value_range
from fedbm.report.figures.labels import text_width

VALUES = st.floats(-1e9, 1e9).map(lambda value: round(value, 6))


def test_a_scale_is_linear_in_both_directions() -> None:
    assert [Scale(0, 10, 100, 200).at(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert [Scale(0, 10, 200, 100).at(value) for value in (0, 5, 10)] == [200, 150, 100]


@pytest.mark.parametrize(
    ("values", "margin", "expected"),
    [
        ([1, 3, 2], 0.0, (1, 3)),
        ([0, 10], 0.1, (-1, 11)),
        ([2, 2], 0.0, (1.9, 2.1)),
        ([-2], 0.0, (-2.1, -1.9)),
        ([0, 0], 0.0, (-0.05, 0.05)),
        ([0.3, 0.1 + 0.2], 0.0, (0.285, 0.315)),
        ([], 0.0, (0, 1)),
    ],
)
def test_a_range_is_never_empty(values: list[float], margin: float, expected: tuple[float, float]) -> None:
    assert value_range(values, margin) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "most", "integer", "labels"),
    [
        (0, 100, 5, False, ["0", "20", "40", "60", "80", "100"]),
        (0.02, 0.11, 3, False, ["0.05", "0.10"]),
        (-1.1, 1.1, 4, False, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        (1, 3, 8, True, ["1", "2", "3"]),
        (1, 9, 3, True, ["2", "4", "6", "8"]),
        (1, 46, 2, True, ["20", "40"]),
        (0.95, 1.05, 8, True, ["1"]),
        (0, 2.5e-5, 5, False, ["0", "5e−6", "1e−5", "1.5e−5", "2e−5", "2.5e−5"]),
        (0, 3e6, 3, False, ["0", "1e6", "2e6", "3e6"]),
    ],
)
def test_ticks(low: float, high: float, most: float, integer: bool, labels: list[str]) -> None:
    assert [*round_ticks(low, high, most, integer).values()] == labels


@given(VALUES, VALUES, st.integers(4, 12))
def test_ticks_are_few_equally_far_apart_and_inside(one: float, other: float, most: int) -> None:
    low, high = value_range([one, other])
    found = [*round_ticks(low, high, most)]
    assert 2 <= len(found) <= most + 1
    steps = [b - a for a, b in pairwise(found)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-4)
    room = 1e-6 * (high - low)
    assert all(low - room <= tick <= high + room for tick in found)


@given(st.floats(1e-3, 1e6), st.floats(60, 800))
def test_labels_of_a_horizontal_axis_do_not_touch(high: float, width: float) -> None:
    scale = Scale(high / 3, high, 0, width)
    ticks = fitting_ticks(scale, 8)
    gaps = [scale.at(b) - scale.at(a) - (text_width(ticks[a]) + text_width(ticks[b])) / 2 for a, b in pairwise(ticks)]
    assert len(ticks) <= 3 or min(gaps) >= LABEL_GAP - 1e-6
