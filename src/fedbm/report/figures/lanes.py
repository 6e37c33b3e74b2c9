"""Draw one lane per row on a common scale: values with their mean, or differences with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbm.report.figures.drawing import WIDE, marker, max_width, pixel_axes, plain_axes, short_names, ticks, write
from fedbm.report.figures.svg import INK, MUTED, render, series
from fedbm.utils.statistics import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Dots:
    """The values of one row; *paper* is the paper's mean and standard deviation."""

    label: str
    colour: int
    values: tuple[float, ...]
    paper: tuple[float, float] | None = None


@dataclass(frozen=True)
class Interval:
    """A difference with its interval; *paper* is the paper's difference."""

    label: str
    mean: float
    low: float
    high: float
    paper: float | None = None


def dots(rows: Sequence[Dots], title: str, axis: str, width: float = WIDE) -> str:
    """Draw a dot for every value and a tick at their mean; the paper's mean ± std is a grey bar."""
    everything = [value for row in rows for value in row.values]
    everything += [row.paper[0] + sign * row.paper[1] for row in rows if row.paper for sign in (-1, 1)]

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            mean, level = spread(row.values).mean, [place] * len(row.values)
            if row.paper:
                middle, std = row.paper
                ends = [middle - std, middle + std]
                axes.plot(ends, [place, place], color=MUTED, lw=12, alpha=0.22, solid_capstyle="butt")
                axes.plot(middle, place, "|", ms=12, mew=2, color=MUTED)
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=INK, lw=1.6)
            axes.plot(row.values, level, "o", color=series(row.colour), alpha=0.9, **marker(row.colour, 9))

    return draw_lanes([row.label for row in rows], everything, title, axis, draw, width)


def intervals(rows: Sequence[Interval], colour: int, title: str, axis: str, width: float = WIDE) -> str:
    """Draw a dot for every difference on its interval, a line at zero, and a grey tick for the paper's."""
    everything = [0.0, *(value for row in rows for value in (row.low, row.high))]
    everything += [row.paper for row in rows if row.paper is not None]

    def draw(axes: Axes) -> None:
        axes.axvline(0.0, color=INK, lw=1.2)
        for place, row in enumerate(rows):
            axes.plot([row.low, row.high], [place, place], color=series(colour), lw=2.4, alpha=0.55)
            if row.paper is not None:
                axes.plot(row.paper, place, "|", ms=16, mew=3, color=MUTED)
            axes.plot(row.mean, place, "o", color=series(colour), **marker(colour, 9))

    return draw_lanes([row.label for row in rows], everything, title, axis, draw, width)


def draw_lanes(
    labels: Sequence[str],
    everything: Sequence[float],
    title: str,
    axis: str,
    draw: Callable[[Axes], None],
    width: float = WIDE,
) -> str:
    """Draw a lane for each label at y = 0, 1, … from the top, on a scale for all values; *draw* fills the lanes."""
    names = short_names(labels, width)
    left, top, right, step = 16 + max_width(names), 24.0, 24.0, 30.0
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
