"""Curves over rounds: the mean over seeds as a line, lowest to highest as a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbm.report.figures.drawing import (
    WIDE,
    marker,
    pixel_axes,
    plain_axes,
    short_names,
    shorten,
    spread_labels,
    ticks,
    widest,
    write,
)
from fedbm.report.figures.palette import dashes, dotted
from fedbm.report.figures.svg import MUTED, render, series
from fedbm.utils.statistics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = tuple[tuple[int, float], ...]  # (round, value), by round
SHARED_UP_TO = 4  # curves in one plot: bands of more hide each other
PANEL_WIDTH, PANEL_HEIGHT = 185.0, 120.0  # pixels of a panel with its margin, and of its axes


@dataclass(frozen=True)
class Curve:
    """A label's lines, one per seed; *marks* are points to set off, such as each seed's chosen round.

    Where every label has a picture of its own, curves of one *panel* share theirs.
    """

    label: str
    colour: int
    lines: tuple[Points, ...]
    marks: Points = ()
    finished: bool = True
    panel: str = ""
    averaged: bool = False  # of the averaged model: dotted and without a band, next to the model's own curve


def curve_plot(curves: Sequence[Curve], title: str, axis: str, scale: float = 1.0) -> str:
    """Draw a few curves in one plot, more of them as a small plot each on one scale."""
    panels = {curve.panel or curve.label for curve in curves if over_seeds(curve)}
    return (shared_plot if len(panels) <= SHARED_UP_TO else small_plots)(curves, title, axis, scale)


def shared_plot(shown: Sequence[Curve], title: str, axis: str, scale: float = 1.0) -> str:
    """The mean over seeds as a line, lowest to highest as a band, the name at its end; value × *scale*.

    A line that is not finished is thin, dashed and has no band: it must not pass for a result.
    """
    shown = [curve for curve in shown if over_seeds(curve)]
    names = short_names([curve.label for curve in shown])
    left, top, right, bottom = 40.0, 34.0, 26 + widest(names), 40.0
    height = max(330.0, top + bottom + 34 * len(shown))

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, left, top, WIDE - left - right, height - top - bottom)
        ends = [curve_on(axes, curve, scale) for curve in shown]
        axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.xaxis.set_major_locator(ticks(WIDE / 110, integer=True))
        axes.yaxis.set_major_locator(ticks(6))
        axes.margins(x=0.0, y=0.04)
        axes.autoscale_view()
        sheet = pixel_axes(figure)
        places = [axes.transData.transform(end) for end in ends]
        ys = [height - y for _, y in places]
        edge = WIDE - right
        for curve, name, (x, _), y, placed in zip(
            shown, names, places, ys, spread_labels(ys, 17, top, height - bottom), strict=True
        ):
            stops_here = x > edge - 12  # no leader across the picture from a line that ended early
            leader = [(x + 3, y), (edge + 8, placed)] if stops_here else [(edge + 6, placed)]
            across, down = zip(*leader, (edge + 16, placed), strict=True)
            pattern = dotted(curve.colour) if curve.averaged else dashes(curve.colour)
            style: dict[str, Any] = {"dashes": pattern} if pattern else {}
            sheet.plot(across, down, color=series(curve.colour), lw=0.9, **style)
            write(sheet, edge + 20, placed, name)
        write(sheet, 0, 12, axis, colour=MUTED)
        write(sheet, edge, height - 9, "round", "right", colour=MUTED)

    return render(WIDE, height, title, draw)


def curve_on(axes: Axes, curve: Curve, scale: float) -> tuple[float, float]:
    """Draw one curve; where it ends."""
    common = over_seeds(curve, scale)
    rounds, stats, colour = list(common), list(common.values()), series(curve.colour)
    if len(curve.lines) > 1 and not curve.averaged:
        low, high = [s.low for s in stats], [s.high for s in stats]
        axes.fill_between(rounds, low, high, color=colour, alpha=0.12, linewidth=0)
    solid_or_dashed = dashes(curve.colour) or (() if curve.finished else (4, 3))
    pattern = dotted(curve.colour) if curve.averaged else solid_or_dashed
    style: dict[str, Any] = {"dashes": pattern} if pattern else {"solid_capstyle": "round"}
    axes.plot(rounds, [s.mean for s in stats], color=colour, lw=2.0 if curve.finished else 1.2, **style)
    for number, value in curve.marks:
        axes.plot(number, value * scale, "o", color=colour, clip_on=False, zorder=4, **marker(curve.colour, 7))
    return rounds[-1], stats[-1].mean


def over_seeds(curve: Curve, scale: float = 1.0) -> dict[int, Spread]:
    """By round, where every seed has a value: a mean over changing seeds would jump for no reason."""
    by_round: dict[int, list[float]] = {}
    for line in curve.lines:
        for number, value in line:
            by_round.setdefault(number, []).append(value * scale)
    return {number: spread(all_) for number, all_ in sorted(by_round.items()) if len(all_) == len(curve.lines)}


def small_plots(curves: Sequence[Curve], title: str, axis: str, scale: float = 1.0) -> str:
    """Draw each panel's curves in colour, with the first panel's mean as a thin line in every other panel."""
    by_panel: dict[str, list[Curve]] = {}
    for curve in curves:
        if over_seeds(curve):
            by_panel.setdefault(curve.panel or curve.label, []).append(curve)
    first = next(iter(by_panel))
    first_mean = {number: at.mean for number, at in over_seeds(by_panel[first][0], scale).items()}
    across = max(1, int(WIDE // PANEL_WIDTH))
    left, top, step = 34.0, 62.0, PANEL_HEIGHT + 62
    room = (WIDE - left) / across
    height = top + step * -(-len(by_panel) // across) - 20

    def draw(figure: Figure) -> None:
        sheet = pixel_axes(figure)
        found = []
        for place, (name, some) in enumerate(by_panel.items()):
            x, y = left + room * (place % across), top + step * (place // across)
            axes = plain_axes(figure, x, y, room - 22, PANEL_HEIGHT)
            found.append(axes)
            if name != first:
                axes.plot(list(first_mean), list(first_mean.values()), color=MUTED, lw=0.9)
            for curve in some:
                curve_on(axes, curve, scale)
            axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.7)
            axes.xaxis.set_major_locator(ticks(2, integer=True))
            axes.yaxis.set_major_locator(ticks(4))
            axes.margins(x=0.0, y=0.04)
            axes.tick_params(labelleft=place % across == 0)
            for line, part in enumerate(reversed([part for part in name.partition(" · ")[::2] if part])):
                write(sheet, x, y - 12 - 15 * line, shorten(part, int(room / 8.5)))  # options below what has them
        low, high = min(one.get_ylim()[0] for one in found), max(one.get_ylim()[1] for one in found)
        last = max(one.get_xlim()[1] for one in found)
        for one in found:
            one.set_ylim(low, high)
            one.set_xlim(one.get_xlim()[0], last)
        write(sheet, 0, 12, f"{axis}, by round; thin: the first", colour=MUTED)

    return render(WIDE, height, title, draw)
