"""Draw lines over rounds or over an axis: the mean over seeds as a line, lowest to highest as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedbm.report.figures.axes import (
    LABEL_GAP,
    Scale,
    draw_marks,
    draw_x_axis,
    draw_y_axis,
    fitting_ticks,
    round_ticks,
    value_range,
)
from fedbm.report.figures.labels import max_width, shorten_to_width, spread_labels
from fedbm.report.figures.palette import dash_pattern
from fedbm.report.figures.svg import MUTED, WIDE, Drawing, Point, series
from fedbm.utils.statistics import Spread, spread

Points = tuple[tuple[int, float], ...]  # (round, value), by round
MAX_SHARED_CURVES = 4  # in one plot; the bands of more curves hide each other
PANEL_WIDTH, PANEL_HEIGHT = 185.0, 120.0  # pixels of a panel with its margin, and of its axes
DOTTED = (1.0, 1.2)  # the dash pattern of an averaged model
TOP, BOTTOM = 34.0, 40.0  # pixels above and below the axes of a shared plot


@dataclass(frozen=True)
class Curve:
    """Lines over rounds, one per seed; *marks* are highlighted points, such as each seed's chosen round.

    Curves with the same *panel* share a small plot. *over_axis*: each line is a point at a place of an axis.
    """

    label: str
    colour: int
    lines: tuple[Points, ...]
    marks: Points = ()
    finished: bool = True
    panel: str = ""
    averaged: bool = False  # of the averaged model: dotted, without a band
    over_axis: bool = False

    @cached_property
    def stats(self) -> dict[int, Spread]:
        """The spread by round that every seed has: a mean over changing seeds would jump for no reason."""
        by_round: dict[int, list[float]] = {}
        for line in self.lines:
            for number, value in line:
                by_round.setdefault(number, []).append(value)
        enough = 1 if self.over_axis else len(self.lines)
        return {number: spread(values) for number, values in sorted(by_round.items()) if len(values) >= enough}

    @property
    def pattern(self) -> tuple[float, ...]:
        """The dash pattern: () for a solid line."""
        if self.averaged:
            return DOTTED
        return dash_pattern(self.colour) or (() if self.finished else (4, 3))

    @property
    def band(self) -> bool:
        """Whether a band shows the lowest and the highest value."""
        return self.over_axis or (len(self.lines) > 1 and not self.averaged)

    @property
    def places(self) -> list[float]:
        return [*self.stats, *(at for at, _ in self.marks)]

    @property
    def values(self) -> list[float]:
        edges = [(found.low, found.high) if self.band else (found.mean,) for found in self.stats.values()]
        return [value for some in (*edges, [value for _, value in self.marks]) for value in some]


def curve_plot(curves: Sequence[Curve], title: str, axis: str) -> str:
    """Draw a few curves in one plot, or more of them in a small plot each on one scale."""
    panels = {curve.panel or curve.label for curve in curves if curve.stats}
    return (shared_plot if len(panels) <= MAX_SHARED_CURVES else small_plots)(curves, title, axis)


def axis_plot(
    scores: Mapping[str, Mapping[int, Sequence[float]]],
    colours: Mapping[str, int],
    places: Sequence[str],
    title: str,
    axis: str,
    across: str,
) -> str:
    """Draw scores × 100, name → place → a score per seed. Places are at equal distances whatever their values."""
    curves = []
    for name, by_place in scores.items():
        points = tuple(((at, 100 * value),) for at, values in by_place.items() for value in values)
        curve = Curve(name, colours[name], points, over_axis=True)
        curves.append(replace(curve, marks=tuple((at, found.mean) for at, found in curve.stats.items())))
    return shared_plot(curves, title, axis, across, places)


def small_plots(curves: Sequence[Curve], title: str, axis: str) -> str:
    """Draw each panel's curves in colour, with the first panel's mean as a thin line in every other panel."""
    drawn = [curve for curve in curves if curve.stats]
    by_panel: dict[str, list[Curve]] = {}
    for curve in drawn:
        by_panel.setdefault(curve.panel or curve.label, []).append(curve)
    first = [(at, found.mean) for at, found in drawn[0].stats.items()]
    rounds = value_range(at for curve in drawn for at in curve.places)
    low, high = value_range((value for curve in drawn for value in curve.values), 0.04)
    heights = round_ticks(low, high, 4)
    across = int(WIDE // PANEL_WIDTH)
    left, top, step = max(34.0, 10 + max_width(heights.values())), 62.0, PANEL_HEIGHT + 62
    room = (WIDE - left) / across
    sheet = Drawing(WIDE, top + step * -(-len(by_panel) // across) - 20, title)
    sheet.write(0, 12, f"{axis}, by round; thin: the first", colour=MUTED)
    for place, (name, some) in enumerate(by_panel.items()):
        start, bottom = left + room * (place % across), top + step * (place // across) + PANEL_HEIGHT
        x = Scale(*rounds, start, start + room - 22)
        y = Scale(low, high, bottom, bottom - PANEL_HEIGHT)
        for line, part in enumerate(reversed([part for part in name.partition(" · ")[::2] if part])):
            # options are below the method
            sheet.write(start, bottom - PANEL_HEIGHT - 12 - 15 * line, shorten_to_width(part, room - LABEL_GAP))
        draw_y_axis(sheet, x, y, dict.fromkeys(heights, "") if place % across else heights)
        draw_x_axis(sheet, x, bottom, fitting_ticks(x, 3, integer=True))
        _draw_lines(sheet, x, y, some, first if place else ())
    return sheet.svg()


def shared_plot(
    curves: Sequence[Curve], title: str, axis: str, across: str = "round", places: Sequence[str] = ()
) -> str:
    """Draw curves over rounds, or over *places*, in one plot with their names at the right.

    A thin line connects an end with its name, unless the line ends at a round before the last. A run that is not
    finished is thin, dashed and has no band, so that nobody takes it for a result.
    """
    lines = [curve for curve in curves if curve.stats]
    names = [shorten_to_width(line.label, 0.38 * WIDE) for line in lines]
    low, high = value_range((value for line in lines for value in line.values), 0.04)
    heights = round_ticks(low, high, 6)
    left, right = max(40.0, 10 + max_width(heights.values())), WIDE - 26 - max_width(names)
    height = max(330.0, TOP + BOTTOM + 34 * len(names))
    y = Scale(low, high, height - BOTTOM, TOP)
    if places:
        x, room = Scale(-0.3, len(places) - 0.7, left, right), (right - left) / len(places) - LABEL_GAP
        ticks = {float(place): shorten_to_width(name, room) for place, name in enumerate(places)}
    else:
        x = Scale(*value_range(at for line in lines for at in line.places), left, right)
        ticks = fitting_ticks(x, WIDE / 110, integer=True)
    sheet = Drawing(WIDE, height, title)
    sheet.write(0, 12, axis, colour=MUTED)
    sheet.write(right, height - 9, across, "end", colour=MUTED)
    draw_y_axis(sheet, x, y, heights)
    draw_x_axis(sheet, x, height - BOTTOM, ticks)
    _draw_lines(sheet, x, y, lines)
    ends = [(x.at(at), y.at(line.stats[at].mean)) for line in lines for at in [max(line.stats)]]
    labels = spread_labels([down for _, down in ends], 17, TOP, height - BOTTOM)
    for name, line, (end, down), placed in zip(names, lines, ends, labels, strict=True):
        leader = [(end + 3, down), (right + 8, placed)] if places or end > right - 12 else [(right + 6, placed)]
        sheet.line([*leader, (right + 16, placed)], series(line.colour), 0.9, line.pattern)
        sheet.write(right + 20, placed, name)
    return sheet.svg()


def _draw_lines(sheet: Drawing, x: Scale, y: Scale, lines: Sequence[Curve], thin: Sequence[Point] = ()) -> None:
    """Draw bands, a thin grey line, lines and marks, each in front of the ones before."""
    for line in (line for line in lines if line.band):
        upper = [(x.at(at), y.at(found.high)) for at, found in line.stats.items()]
        lower = [(x.at(at), y.at(found.low)) for at, found in line.stats.items()]
        sheet.area([*upper, *reversed(lower)], series(line.colour), 0.12)
    if thin:
        sheet.line([(x.at(at), y.at(value)) for at, value in thin], MUTED, 0.9)
    for line in lines:
        means = [(x.at(at), y.at(found.mean)) for at, found in line.stats.items()]
        sheet.line(means, series(line.colour), 2.0 if line.finished else 1.2, line.pattern)
        if len(means) == 1 and not line.marks:  # a line of one point is not seen
            draw_marks(sheet, means, line.colour, 6)
    for line in lines:
        points = [(x.at(at), y.at(value)) for at, value in line.marks]
        draw_marks(sheet, points, line.colour, 6 if line.over_axis else 7)
