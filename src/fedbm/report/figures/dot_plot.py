"""Draw one line of dots per row on a common scale: values, their mean and its interval, and the paper's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbm.report.figures.drawing import WIDE, Sheet, marker, max_width, plain_axes, short_names, ticks
from fedbm.report.figures.svg import INK, MUTED, PAPER, render, series
from fedbm.utils.statistics import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DotRow:
    """Values of one row, a mean with its interval, or both; *paper* is the paper's mean and standard deviation."""

    label: str
    colour: int
    values: tuple[float, ...] = ()
    interval: tuple[float, float, float] | None = None  # mean, low, high
    paper: tuple[float, float] | None = None  # a difference has no standard deviation: 0
    heading: str = ""  # above the first of the rows that share it

    @property
    def extent(self) -> tuple[float, ...]:
        middle, std = self.paper or (0.0, 0.0)
        return (*self.values, *(self.interval or ()), *((middle - std, middle + std) if self.paper else ()))


def dot_plot(
    rows: Sequence[DotRow],
    title: str,
    axis: str,
    width: float = WIDE,
    *,
    zero: bool = False,
    bars: bool = False,
    guides: Sequence[float] = (),
) -> str:
    """Draw the rows from the top, with the paper's mean ± std in grey.

    *zero* adds a line at zero, *bars* a bar from zero to each mean. *guides* are values with a dashed line across all
    rows.
    """
    names = short_names([row.label for row in rows], width)
    left, top, right, step = 16 + max_width(names), 24.0, 24.0, 30.0
    everything = [*([0.0] if zero or bars else []), *(value for row in rows for value in row.extent)]
    margin = 0.08 * (max(everything) - min(everything)) or 1.0
    texts: list[str | DotRow] = []  # a heading or a row for every line
    for row in rows:
        texts += [row.heading, row] if row.heading and row.heading not in texts else [row]

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, left, top, width - left - right, step * len(texts))
        axes.grid(axis="x", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.xaxis.set_major_locator(ticks(width / 110))
        axes.set_xlim(min(everything) - (0 if bars else margin), max(everything) + margin)
        axes.set_ylim(len(texts) - 0.5, -0.5)
        axes.set_yticks([])
        sheet = Sheet(figure)
        if zero:
            axes.axvline(0.0, color=INK, lw=1.2)
        for guide in guides:
            axes.axvline(guide, color=MUTED, lw=1.0, dashes=(4, 3))
        remaining = iter(names)
        for place, found in enumerate(texts):
            if isinstance(found, str):
                axes.axhspan(place - 0.5, place + 0.5, color=PAPER, linewidth=0, zorder=0.6)  # hides the grid
                sheet.write(0, top + step * (place + 0.6), found, colour=MUTED)
            else:
                if bars:
                    mean = spread(found.values).mean
                    axes.barh(place, mean, height=0.64, color=series(found.colour), alpha=0.3, linewidth=0)
                _draw_row(axes, place, found, tick=bars or len(found.values) > 1)
                sheet.write(0, top + step * (place + 0.5), next(remaining))
        sheet.write(left, 10, axis, colour=MUTED)

    return render(width, top + step * len(texts) + 28, title, draw)


def _draw_row(axes: Axes, place: int, row: DotRow, tick: bool) -> None:
    """Draw values on the row's line, with a tick at their mean, or below their interval."""
    colour, mark = series(row.colour), marker(row.colour, 9)
    if row.paper:
        middle, std = row.paper
        if std:
            ends = [middle - std, middle + std]
            axes.plot(ends, [place, place], color=MUTED, lw=12, alpha=0.22, solid_capstyle="butt")
        axes.plot(middle, place, "|", color=MUTED, ms=12 if std else 16, mew=2 if std else 3)
    if row.interval:
        mean, low, high = row.interval
        level = place - 0.14 if row.values else place
        axes.plot([low, high], [level, level], color=colour, lw=2.4, alpha=0.55)
        axes.plot(mean, level, color=colour, ls="none", **mark)
        small = {"marker": mark["marker"], "ms": 5, "mew": 0, "ls": "none"}
        axes.plot(row.values, [place + 0.24] * len(row.values), color=colour, alpha=0.55, **small)
    else:
        if tick:
            mean = spread(row.values).mean
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=INK, lw=1.6)
        axes.plot(row.values, [place] * len(row.values), color=colour, alpha=0.9, ls="none", **mark)
