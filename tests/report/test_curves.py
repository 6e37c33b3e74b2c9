"""Curves over rounds: a few in one plot, more in a small plot each, all on one scale."""

from __future__ import annotations

import pytest
from drawings import paths, texts

from fedbm.report.figures.curves import MAX_SHARED_CURVES, Curve, curve_plot, shared_plot, small_plots


def level(label: str, colour: int, *values: float, **more: object) -> Curve:
    return Curve(label, colour, tuple(((1, value), (2, value)) for value in values), **more)  # type: ignore[arg-type]


def test_a_few_curves_share_a_picture_and_more_have_one_each() -> None:
    some = [level(f"m{k}", k, 0.1 * k) for k in range(MAX_SHARED_CURVES + 1)]
    assert curve_plot(some[:-1], "t", "y") == shared_plot(some[:-1], "t", "y")
    assert curve_plot(some, "t", "y") == small_plots(some, "t", "y")
    assert {f"m{k}" for k in range(MAX_SHARED_CURVES + 1)} <= set(texts(small_plots(some, "t", "y")))


def test_a_curve_without_a_common_round_is_no_panel() -> None:
    empty = Curve("empty", 5, (((1, 0.1),), ((2, 0.1),)))
    some = [level(f"m{k}", k, 0.1) for k in range(MAX_SHARED_CURVES)]
    assert curve_plot([*some, empty], "t", "y") == shared_plot(some, "t", "y")
    assert "empty" not in texts(small_plots([*some, empty], "t", "y"))


def test_unfinished_seeds_share_the_panel_of_their_method() -> None:
    """Eight curves of two methods are two panels, so they are drawn together."""
    seeds = [level(f"{m}, seed {s}", k, 0.1 * s, finished=False, panel=m) for k, m in enumerate("ab") for s in range(4)]
    assert curve_plot(seeds, "t", "y") == shared_plot(seeds, "t", "y")
    drawn = small_plots(seeds, "t", "y")
    assert [text for text in texts(drawn) if text in ("a", "b")] == ["a", "b"]
    assert len(paths(drawn, "--s0", "1.2")) == 4


def test_panels_have_one_scale_and_the_first_ones_mean_in_all() -> None:
    """Levels 1, 2 and 3 in a row of three: equally far apart; the thin line lies at the first one's level."""
    drawn = small_plots([level("a", 0, 0.5, 1.5), level("b", 1, 2.0), level("c", 2, 3.0)], "t", "y")
    (a,), (b,), (c,) = (paths(drawn, f"--s{k}", "2") for k in range(3))
    heights = [points[0][1] for points in (a, b, c)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.02)
    assert heights[0] > heights[1]
    thin = paths(drawn, "--muted", "0.9")
    assert [[y for _, y in points] for points in thin] == [[heights[0]] * 2] * 2
    assert a[0][0] < b[0][0] < c[0][0], "side by side"


def test_panels_of_one_method_are_told_apart_by_its_options() -> None:
    names = [f"FedBM · temperature={t} · lambda_dis={d}" for t in (0.5, 1.5) for d in (0.1, 0.2)]
    drawn = texts(small_plots([level(name, k, 0.1 * k) for k, name in enumerate(names)], "t", "y"))
    assert drawn.count("FedBM") == 4
    assert len({text for text in drawn if text.startswith("temp")}) == 4
