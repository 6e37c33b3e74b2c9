"""Draw lines over rounds or over an axis: the mean over seeds as a line, lowest to highest as a band."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbm.report.figures.drawing import (
    WIDE,
    Sheet,
    marker,
    max_width,
    plain_axes,
    short_names,
    shorten,
    spread_labels,
    ticks,
)
from fedbm.report.figures.palette import dash_pattern
from fedbm.report.figures.svg import MUTED, render, series
from fedbm.utils.statistics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
Points = tuple[tuple[int, float], ...]  # (round, value), by round
MAX_SHARED_CURVES = 4  # in one plot; the bands of more curves hide each other
PANEL_WIDTH, PANEL_HEIGHT = 185.0, 120.0  # pixels of a panel with its margin, and of its axes
DOTTED = (1.0, 1.2)  # the dash pattern of an averaged model
LEFT, TOP = 40.0, 34.0  # pixels around the axes of a shared plot


@dataclass(frozen=True)
class Curve:
    """Lines over rounds, one per seed; *marks* are highlighted points, such as each seed's chosen round.

    Curves with the same *panel* share a small plot.
    """

    label: str
    colour: int
    lines: tuple[Points, ...]
    marks: Points = ()
    finished: bool = True
    panel: str = ""
    averaged: bool = False  # of the averaged model: dotted, without a band

    @property
    def pattern(self) -> tuple[float, ...]:
        """The dash pattern: () for a solid line."""
        if self.averaged:
            return DOTTED
        return dash_pattern(self.colour) or (() if self.finished else (4, 3))


@dataclass(frozen=True)
class Series:
    """Values over an axis: place on the axis → a value per seed."""

    label: str
    colour: int
    values: Mapping[int, Sequence[float]]


def curve_plot(curves: Sequence[Curve], title: str, axis: str, scale: float = 1.0) -> str:
    """Draw a few curves in one plot, or more of them in a small plot each on one scale."""
    panels = {curve.panel or curve.label for curve in curves if spread_by_round(curve)}
    return (shared_plot if len(panels) <= MAX_SHARED_CURVES else small_plots)(curves, title, axis, scale)


def shared_plot(curves: Sequence[Curve], title: str, axis: str, scale: float = 1.0) -> str:
    """Draw curves in one plot with their names at their ends; values × *scale*.

    A run that is not finished is thin, dashed and has no band, so that nobody takes it for a result.
    """
    curves = [curve for curve in curves if spread_by_round(curve)]

    def draw_lines(axes: Axes) -> list[Point]:
        ends = [_draw_curve(axes, curve, scale) for curve in curves]
        axes.xaxis.set_major_locator(ticks(WIDE / 110, integer=True))
        axes.margins(x=0.0, y=0.04)
        axes.autoscale_view()
        return ends

    names = [(curve.label, curve.colour, curve.pattern) for curve in curves]
    return _named_lines(names, draw_lines, title, axis, "round", bottom=40.0, farthest=12)


def axis_plot(lines: Sequence[Series], places: Sequence[str], title: str, axis: str, across: str) -> str:
    """Draw scores × 100 over *places*, which are at equal distances whatever their values."""
    lines = [line for line in lines if line.values]

    def draw_lines(axes: Axes) -> list[Point]:
        axes.set_xlim(-0.3, len(places) - 0.7)
        axes.set_xticks(range(len(places)), places)
        ends: list[Point] = []
        for line in lines:
            at = sorted(line.values)
            stats = [spread([100 * value for value in line.values[place]]) for place in at]
            colour, pattern = series(line.colour), dash_pattern(line.colour)
            _draw_band(axes, at, stats, colour)
            style: dict[str, Any] = {"dashes": pattern} if pattern else {}
            axes.plot(at, [s.mean for s in stats], color=colour, lw=2, **marker(line.colour, 6), **style)
            ends.append((at[-1], stats[-1].mean))
        axes.margins(y=0.06)
        axes.autoscale_view(scalex=False)
        return ends

    names = [(line.label, line.colour, dash_pattern(line.colour)) for line in lines]
    return _named_lines(names, draw_lines, title, axis, across, bottom=58.0, farthest=WIDE)


def _named_lines(
    lines: Sequence[tuple[str, int, tuple[float, ...]]],
    draw_lines: Callable[[Axes], list[Point]],
    title: str,
    axis: str,
    across: str,
    bottom: float,
    farthest: float,
) -> str:
    """Draw lines, each with (name, colour, dash pattern), and write their names at the right.

    *draw_lines* draws on the axes and returns the end of each line. A thin line connects an end with its name if the
    end is at most *farthest* pixels left of the names.
    """
    names = short_names([name for name, _, _ in lines])
    edge, height = WIDE - 26 - max_width(names), max(330.0, TOP + bottom + 34 * len(names))

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, LEFT, TOP, edge - LEFT, height - TOP - bottom)
        axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.yaxis.set_major_locator(ticks(6))
        ends = [axes.transData.transform(end) for end in draw_lines(axes)]
        sheet = Sheet(figure)
        heights = spread_labels([height - y for _, y in ends], 17, TOP, height - bottom)
        for name, (_, colour, pattern), (x, y), placed in zip(names, lines, ends, heights, strict=True):
            leader = [(x + 3, height - y), (edge + 8, placed)] if x > edge - farthest else [(edge + 6, placed)]
            style: dict[str, Any] = {"dashes": pattern} if pattern else {}
            xs, ys = zip(*leader, (edge + 16, placed), strict=True)
            sheet.plot(xs, ys, color=series(colour), lw=0.9, **style)
            sheet.write(edge + 20, placed, name)
        sheet.write(0, 12, axis, colour=MUTED)
        sheet.write(edge, height - 9, across, "right", colour=MUTED)

    return render(WIDE, height, title, draw)


def _draw_curve(axes: Axes, curve: Curve, scale: float) -> Point:
    """Draw one curve and return its end."""
    common = spread_by_round(curve, scale)
    rounds, stats, colour = list(common), list(common.values()), series(curve.colour)
    if len(curve.lines) > 1 and not curve.averaged:
        _draw_band(axes, rounds, stats, colour)
    style: dict[str, Any] = {"dashes": curve.pattern} if curve.pattern else {"solid_capstyle": "round"}
    axes.plot(rounds, [s.mean for s in stats], color=colour, lw=2.0 if curve.finished else 1.2, **style)
    for number, value in curve.marks:
        axes.plot(number, value * scale, color=colour, ls="none", clip_on=False, zorder=4, **marker(curve.colour, 7))
    return rounds[-1], stats[-1].mean


def _draw_band(axes: Axes, at: Sequence[int], stats: Sequence[Spread], colour: str) -> None:
    axes.fill_between(at, [s.low for s in stats], [s.high for s in stats], color=colour, alpha=0.12, linewidth=0)


def spread_by_round(curve: Curve, scale: float = 1.0) -> dict[int, Spread]:
    """Return round → spread for rounds that every seed has: a mean over changing seeds would jump for no reason."""
    by_round: dict[int, list[float]] = {}
    for line in curve.lines:
        for number, value in line:
            by_round.setdefault(number, []).append(value * scale)
    return {number: spread(all_) for number, all_ in sorted(by_round.items()) if len(all_) == len(curve.lines)}


def small_plots(curves: Sequence[Curve], title: str, axis: str, scale: float = 1.0) -> str:
    """Draw each panel's curves in colour, with the first panel's mean as a thin line in every other panel."""
    by_panel: dict[str, list[Curve]] = {}
    for curve in curves:
        if spread_by_round(curve):
            by_panel.setdefault(curve.panel or curve.label, []).append(curve)
    first = next(iter(by_panel))
    first_mean = {number: at.mean for number, at in spread_by_round(by_panel[first][0], scale).items()}
    across = int(WIDE // PANEL_WIDTH)
    left, top, step = 34.0, 62.0, PANEL_HEIGHT + 62
    room = (WIDE - left) / across
    height = top + step * -(-len(by_panel) // across) - 20

    def draw(figure: Figure) -> None:
        sheet = Sheet(figure)
        panels = []
        for place, (name, some) in enumerate(by_panel.items()):
            x, y = left + room * (place % across), top + step * (place // across)
            axes = plain_axes(figure, x, y, room - 22, PANEL_HEIGHT)
            panels.append(axes)
            if name != first:
                axes.plot(list(first_mean), list(first_mean.values()), color=MUTED, lw=0.9)
            for curve in some:
                _draw_curve(axes, curve, scale)
            axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.7)
            axes.xaxis.set_major_locator(ticks(2, integer=True))
            axes.yaxis.set_major_locator(ticks(4))
            axes.margins(x=0.0, y=0.04)
            axes.tick_params(labelleft=place % across == 0)
            for line, part in enumerate(reversed([part for part in name.partition(" · ")[::2] if part])):
                sheet.write(x, y - 12 - 15 * line, shorten(part, int(room / 8.5)))  # options below the method
        low, high = min(one.get_ylim()[0] for one in panels), max(one.get_ylim()[1] for one in panels)
        last = max(one.get_xlim()[1] for one in panels)
        for one in panels:
            one.set_ylim(low, high)
            one.set_xlim(one.get_xlim()[0], last)
        sheet.write(0, 12, f"{axis}, by round; thin: the first", colour=MUTED)

    return render(WIDE, height, title, draw)
