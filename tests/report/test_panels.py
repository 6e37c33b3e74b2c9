"""Many curves: a panel each, all on one scale, nothing lost; and dots beside another's mean ± std."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from fedbm.report.figures.curves import NARROW, WIDE, Curve, Dots, curves, dots
from fedbm.report.figures.panels import TOGETHER, lines, panels

Paths = list[list[tuple[float, float]]]


def paths(drawing: str, colour: str, width: str) -> Paths:
    """The points of every stroke of this colour and width."""
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path.get("d") or "")]
        for path in ET.fromstring(drawing).iter("path")
        if colour in (style := path.get("style") or "") and f"stroke-width: {width}" in style
    ]


def texts(drawing: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(drawing).iter("text")]


def level(label: str, colour: int, *values: float, **more: object) -> Curve:
    return Curve(label, colour, tuple(((1, value), (2, value)) for value in values), **more)  # type: ignore[arg-type]


def test_a_few_curves_share_a_picture_and_more_have_one_each() -> None:
    some = [level(f"m{k}", k, 0.1 * k) for k in range(TOGETHER + 1)]
    assert lines(some[:-1], "t", "y") == curves(some[:-1], "t", "y")
    assert lines(some, "t", "y") == panels(some, "t", "y")
    assert {f"m{k}" for k in range(TOGETHER + 1)} <= set(texts(panels(some, "t", "y")))


def test_a_curve_without_a_common_round_is_no_panel() -> None:
    empty = Curve("empty", 5, (((1, 0.1),), ((2, 0.1),)))
    some = [level(f"m{k}", k, 0.1) for k in range(TOGETHER)]
    assert lines([*some, empty], "t", "y") == curves(some, "t", "y")
    assert "empty" not in texts(panels([*some, empty], "t", "y"))


def test_unfinished_seeds_share_the_panel_of_their_method() -> None:
    """Eight curves of two methods are two panels, so they are drawn together."""
    seeds = [level(f"{m}, seed {s}", k, 0.1 * s, finished=False, panel=m) for k, m in enumerate("ab") for s in range(4)]
    assert lines(seeds, "t", "y") == curves(seeds, "t", "y")
    drawn = panels(seeds, "t", "y")
    assert [text for text in texts(drawn) if text in ("a", "b")] == ["a", "b"]
    assert len(paths(drawn, "--s0", "1.2")) == 4


def test_panels_have_one_scale_and_the_first_ones_mean_in_all() -> None:
    """Levels 1, 2 and 3 in a row of three: equally far apart; the thin line lies at the first one's level."""
    drawn = panels([level("a", 0, 0.5, 1.5), level("b", 1, 2.0), level("c", 2, 3.0)], "t", "y")
    (a,), (b,), (c,) = (paths(drawn, f"--s{k}", "2") for k in range(3))
    heights = [points[0][1] for points in (a, b, c)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.02)
    assert heights[0] > heights[1]
    thin = paths(drawn, "--muted", "0.9")
    assert [[y for _, y in points] for points in thin] == [[heights[0]] * 2] * 2
    assert a[0][0] < b[0][0] < c[0][0], "side by side"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_panels_of_one_method_are_told_apart_by_its_options(width: float) -> None:
    names = [f"FedBM · temperature={t} · lambda_dis={d}" for t in (0.5, 1.5) for d in (0.1, 0.2)]
    drawn = texts(panels([level(name, k, 0.1 * k) for k, name in enumerate(names)], "t", "y", 1, width))
    assert drawn.count("FedBM") == 4
    assert len({text for text in drawn if text.startswith("temp")}) == 4


def test_panels_fit_a_phone() -> None:
    some = [level("a method of a long name indeed", k, 0.1 * k) for k in range(3)]
    drawn = panels(some, "t", "macro-F1 on the test images, %", 1, NARROW)
    assert ET.fromstring(drawn).get("width") == f"{NARROW:g}"
    assert max(map(len, texts(drawn))) < 60, "letters of 6.1 pixels, as a browser sets them"


def test_what_is_beside_is_a_bar_of_two_standard_deviations_and_widens_the_scale() -> None:
    drawn = dots([Dots("a", 0, (10.0, 20.0), beside=(15.0, 2.5)), Dots("b", 1, (10.0, 20.0))], "t", "x")
    ((start, end),) = paths(drawn, "--muted", "12")
    means = [points[0][0] for points in paths(drawn, "currentColor", "1.6")]
    assert (start[0] + end[0]) / 2 == pytest.approx(means[0], abs=0.02)
    wide = dots([Dots("a", 0, (10.0, 20.0), beside=(80.0, 2.5))], "t", "x")
    assert "80" in texts(wide)
    assert not paths(dots([Dots("a", 0, (10.0, 20.0))], "t", "x"), "--muted", "12")
