"""Dot plots: where values, means, intervals, zero and the paper's marks are, read back from the drawing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from drawings import paths, texts

from fedbm.report.figures.dot_plot import DotRow, dot_plot

ROWS = [DotRow("a", 0, interval=(4.0, -2.0, 10.0), paper=(5.0, 0.0)), DotRow("b", 0, interval=(-6.0, -10.0, -2.0))]


def strokes(drawn: str, name: str, value: str) -> list[tuple[float, float]]:
    """First and last x of every path with this attribute."""
    found = [path.get("d") or "" for path in ET.fromstring(drawn).iter("path") if path.get(name) == value]
    ends = [[float(x) for x in re.findall(r"[ML](-?[\d.]+)", path)] for path in found]
    return [(xs[0], xs[-1]) for xs in ends]


def test_bars_zero_and_the_scale_agree() -> None:
    """−2 … 10 is 12 wide, −10 … −2 is 8, and zero lies two units right of the end of the second."""
    drawn = dot_plot(ROWS, "t", "y", zero=True)
    first, second = strokes(drawn, "opacity", "0.55")
    unit = (first[1] - first[0]) / 12
    assert second[1] - second[0] == pytest.approx(8 * unit, rel=1e-3)
    zeros = [x for x, end in strokes(drawn, "stroke-width", "1.2") if x == end]
    assert zeros == pytest.approx([first[0] + 2 * unit], rel=1e-3)
    assert second[1] == pytest.approx(first[0], rel=1e-3)  # both −2


def test_only_the_papers_difference_has_a_tick() -> None:
    both, one, none = (dot_plot(rows, "t", "y", zero=True) for rows in ([ROWS[0]] * 2, ROWS, [ROWS[1]] * 2))
    found = [drawn.count('stroke-width="3"') for drawn in (both, one, none)]
    assert found == [2, 1, 0]


def test_zero_is_seen_where_every_difference_is_far_from_it() -> None:
    drawn = dot_plot([DotRow("a", 0, interval=(30.0, 25.0, 35.0))], "t", "y", zero=True)
    (bar,) = strokes(drawn, "opacity", "0.55")
    (zero,) = {x for x, end in strokes(drawn, "stroke-width", "1.2") if x == end}
    assert 0 < zero < bar[0]


def test_the_paper_is_a_bar_of_two_standard_deviations_and_widens_the_scale() -> None:
    drawn = dot_plot([DotRow("a", 0, (10.0, 20.0), paper=(15.0, 2.5)), DotRow("b", 1, (10.0, 20.0))], "t", "x")
    ((start, end),) = paths(drawn, "--muted", "12")
    means = [points[0][0] for points in paths(drawn, "currentColor", "1.6")]
    assert (start[0] + end[0]) / 2 == pytest.approx(means[0], abs=0.02)
    wide = dot_plot([DotRow("a", 0, (10.0, 20.0), paper=(80.0, 2.5))], "t", "x")
    assert "80" in texts(wide)
    assert not paths(dot_plot([DotRow("a", 0, (10.0, 20.0))], "t", "x"), "--muted", "12")


def test_bars_reach_from_zero_to_the_mean_under_one_heading_for_each_group() -> None:
    rows = [DotRow("a", 0, (10.0, 20.0), heading="north"), DotRow("b", 1, (30.0,), heading="north")]
    drawn = dot_plot(rows, "t", "x", bars=True)
    bars = [
        (float(box.get("x", "")), float(box.get("width", "")))
        for box in ET.fromstring(drawn).iter("rect")
        if box.get("opacity") == "0.3"
    ]
    means = [points[0][0] for points in paths(drawn, "currentColor", "1.6")]
    assert [x + width for x, width in bars] == pytest.approx(means, abs=0.1)
    (start,) = {x for x, _ in bars}
    assert (means[0] - start) / (means[1] - start) == pytest.approx(15 / 30, abs=0.01)
    assert texts(drawn).count("north") == 1
