"""Numbers → SVG. Each function is pure: the same numbers give the same text, whatever was drawn before.

All share one look: hairlines, labels beside what they name, the page's own font, one colour per method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbm.report.figures.drawing import SIZE, apart, pixel_axes, shorten, text_width, widest, write
from fedbm.report.figures.matrices import confusion, partition_bubbles, similarity
from fedbm.report.figures.palette import dashes, dotted
from fedbm.report.figures.svg import INK, MUTED, PAPER, render, save_svg, series
from fedbm.report.statistics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

__all__ = [
    "NARROW",
    "WIDE",
    "Curve",
    "Dots",
    "Points",
    "bars",
    "confusion",
    "curves",
    "dots",
    "partition_bubbles",
    "save_svg",
    "similarity",
]

WIDE, NARROW = 880.0, 380.0  # pixels: beside a column of notes, and on a phone
Points = tuple[tuple[int, float], ...]  # (round, value), by round


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


@dataclass(frozen=True)
class Dots:
    """A label's values; *beside* is another's mean and standard deviation, to compare with."""

    label: str
    colour: int
    values: tuple[float, ...]
    beside: tuple[float, float] | None = None


def curves(drawn: Sequence[Curve], title: str, axis: str, scale: float = 1.0, width: float = WIDE) -> str:
    """The mean over seeds as a line, lowest to highest as a band, the name at its end; value × *scale*.

    A line that is not finished is thin, dashed and has no band: it must not pass for a result.
    """
    drawn = [curve for curve in drawn if over_seeds(curve)]
    names = _names([curve.label for curve in drawn], width)
    left, top, right, bottom = 40.0, 34.0, 26 + widest(names), 40.0
    height = max(330.0, top + bottom + 34 * len(drawn))

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, left, top, width - left - right, height - top - bottom)
        ends = [curve_on(axes, curve, scale) for curve in drawn]
        axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.xaxis.set_major_locator(ticks(width / 110, integer=True))
        axes.yaxis.set_major_locator(ticks(6))
        axes.margins(x=0.0, y=0.04)
        axes.autoscale_view()
        sheet = pixel_axes(figure)
        places = [axes.transData.transform(end) for end in ends]
        ys = [height - y for _, y in places]
        edge = width - right
        for curve, name, (x, _), y, placed in zip(
            drawn, names, places, ys, apart(ys, 17, top, height - bottom), strict=True
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

    return render(width, height, title, draw)


def curve_on(axes: Axes, curve: Curve, scale: float) -> tuple[float, float]:
    """Draw one curve; where it ends."""
    common = over_seeds(curve, scale)
    rounds, stats, colour = list(common), list(common.values()), series(curve.colour)
    if len(curve.lines) > 1 and not curve.averaged:
        low, high = [s.low for s in stats], [s.high for s in stats]
        axes.fill_between(rounds, low, high, color=colour, alpha=0.12, linewidth=0)
    pattern = dashes(curve.colour) or (() if curve.finished else (4, 3))
    pattern = dotted(curve.colour) if curve.averaged else pattern
    style: dict[str, Any] = {"dashes": pattern} if pattern else {"solid_capstyle": "round"}
    axes.plot(rounds, [s.mean for s in stats], color=colour, lw=2.0 if curve.finished else 1.2, **style)
    for number, value in curve.marks:
        axes.plot(number, value * scale, "o", color=colour, clip_on=False, zorder=4, **dot(curve.colour, 7))
    return rounds[-1], stats[-1].mean


def dot(number: int, size: float) -> dict[str, Any]:
    """Hollow where the line is dashed: colours that begin again must not look alike."""
    if dashes(number):
        return {"ms": size - 1.5, "mfc": PAPER, "mec": series(number), "mew": 2.0}
    return {"ms": size, "mec": PAPER, "mew": 1.3}


def over_seeds(curve: Curve, scale: float = 1.0) -> dict[int, Spread]:
    """By round, where every seed has a value: a mean over changing seeds would jump for no reason."""
    by_round: dict[int, list[float]] = {}
    for line in curve.lines:
        for number, value in line:
            by_round.setdefault(number, []).append(value * scale)
    return {number: spread(all_) for number, all_ in sorted(by_round.items()) if len(all_) == len(curve.lines)}


def dots(rows: Sequence[Dots], title: str, axis: str, width: float = WIDE) -> str:
    """One line per label with a dot for every value and a tick at their mean, on a common scale.

    What is beside is a grey bar, mean ± standard deviation, with its middle marked.
    """
    everything = [value for row in rows for value in row.values]
    everything += [row.beside[0] + sign * row.beside[1] for row in rows if row.beside for sign in (-1, 1)]

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            mean, level = spread(row.values).mean, [place] * len(row.values)
            if row.beside:
                middle, std = row.beside
                ends = [middle - std, middle + std]
                axes.plot(ends, [place, place], color=MUTED, lw=12, alpha=0.22, solid_capstyle="butt")
                axes.plot(middle, place, "|", ms=12, mew=2, color=MUTED)
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=INK, lw=1.6)
            axes.plot(row.values, level, "o", color=series(row.colour), alpha=0.9, **dot(row.colour, 9))

    return lanes([row.label for row in rows], everything, title, axis, draw, width)


def lanes(
    labels: Sequence[str],
    everything: Sequence[float],
    title: str,
    axis: str,
    draw: Callable[[Axes], None],
    width: float = WIDE,
) -> str:
    """A lane for each label, 0, 1, … from the top, on a scale wide enough for *everything*: *draw* fills them."""
    names = _names(labels, width)
    left, top, right, step = 16 + widest(names), 24.0, 24.0, 30.0
    margin = 0.08 * (max(everything) - min(everything)) or 1.0

    def fill(figure: Figure) -> None:
        axes = plain_axes(figure, left, top, width - left - right, step * len(names))
        axes.grid(axis="x", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.xaxis.set_major_locator(ticks(width / 110))
        axes.set_xlim(min(everything) - margin, max(everything) + margin)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks([])
        sheet = pixel_axes(figure)
        draw(axes)
        for place, name in enumerate(names):
            write(sheet, 0, top + step * (place + 0.5), name)
        write(sheet, left, 10, axis, colour=MUTED)

    return render(width, top + step * len(names) + 28, title, fill)


def bars(
    labels: Sequence[tuple[str, int]],
    parts: Mapping[str, Sequence[float]],
    title: str,
    show: Callable[[float], str],
    width: float = WIDE,
) -> str:
    """A stacked bar for each (label, colour): *parts* from strong to faint, the total at its end."""
    names = _names([label for label, _ in labels], width)
    totals = [sum(values) for values in zip(*parts.values(), strict=True)]
    left, right, step = 16 + widest(names), 16 + widest([show(total) for total in totals]), 30.0
    room, longest = width - left - right, max(totals) or 1.0
    shades = [max(0.12, 0.95 * 0.62**place) for place in range(len(parts))]
    legend = in_lines([34 + text_width(name) for name in parts], left, width)
    top = legend[-1][1] + 24

    def draw(figure: Figure) -> None:
        sheet = pixel_axes(figure)
        for name, shade, (x, y) in zip(parts, shades, legend, strict=True):
            _box(sheet, x, y - 5, 10, 10, INK, shade)
            write(sheet, x + 15, y, name, colour=MUTED)
        for place, (name, (_, colour)) in enumerate(zip(names, labels, strict=True)):
            y, x = top + step * place, left
            write(sheet, 0, y + step / 2, name)
            for shade, values in zip(shades, parts.values(), strict=True):
                length = room * values[place] / longest
                _box(sheet, x, y + 6, length, step - 12, series(colour), shade)
                x += length
            write(sheet, x + 8, y + step / 2, show(totals[place]))

    return render(width, top + step * len(labels) + 4, title, draw)


def _names(labels: Sequence[str], width: float) -> list[str]:
    return [shorten(label, int(width / 22)) for label in labels]


def plain_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at these pixels: a baseline and small quiet numbers."""
    whole = figure.get_size_inches() * figure.dpi
    axes = figure.add_axes((left / whole[0], 1 - (top + height) / whole[1], width / whole[0], height / whole[1]))
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.spines["bottom"].set(color=MUTED, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6, labelsize=SIZE, labelcolor=MUTED)
    return axes


def ticks(most: float, integer: bool = False) -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=max(2, int(most)), steps=[1, 2, 5, 10], integer=integer, min_n_ticks=1)


def in_lines(widths: Sequence[float], left: float, right: float) -> list[tuple[float, float]]:
    """Where things of these widths go, from *left*, line after line, when none may cross *right*."""
    x, y, places = left, 11.0, []
    for width in widths:
        if x > left and x + width > right:
            x, y = left, y + 20
        places.append((x, y))
        x += width
    return places


def _box(sheet: Axes, x: float, y: float, width: float, height: float, colour: str, shade: float) -> None:
    from matplotlib.patches import Rectangle

    sheet.add_patch(Rectangle((x, y), max(0.0, width - 0.8), height, facecolor=colour, alpha=shade, linewidth=0))
