"""Scores over an axis, such as the number of clients: mean over seeds as a line, lowest to highest as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbm.report.figures.drawing import (
    WIDE,
    pixel_axes,
    plain_axes,
    short_names,
    spread_labels,
    ticks,
    widest,
    write,
)
from fedbm.report.figures.palette import dashes
from fedbm.report.figures.svg import MUTED, PAPER, render, series
from fedbm.utils.statistics import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Series:
    """One label's values by place on the axis, a value per seed; a place without any is left open."""

    label: str
    colour: int
    values: Mapping[int, Sequence[float]]  # place on the axis → values


def line_plot(lines: Sequence[Series], places: Sequence[str], title: str, axis: str, across: str) -> str:
    """Draw places at equal distances, whatever their values; scores × 100."""
    lines = [line for line in lines if line.values]
    names = short_names([line.label for line in lines])
    left, top, right, bottom = 40.0, 34.0, 26 + widest(names), 58.0
    height = max(330.0, top + bottom + 30 * len(lines))

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, left, top, WIDE - left - right, height - top - bottom)
        axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.yaxis.set_major_locator(ticks(6))
        axes.set_xlim(-0.3, len(places) - 0.7)
        axes.set_xticks(range(len(places)), places)
        ends = []
        for line in lines:
            at = sorted(line.values)
            stats = [spread([100 * value for value in line.values[place]]) for place in at]
            colour, pattern = series(line.colour), dashes(line.colour)
            axes.fill_between(at, [s.low for s in stats], [s.high for s in stats], color=colour, alpha=0.1, linewidth=0)
            (path,) = axes.plot(at, [s.mean for s in stats], "-o", color=colour, lw=2, ms=6, mec=PAPER, mew=1)
            if pattern:
                path.set_dashes(pattern)
            ends.append((at[-1], stats[-1].mean))
        axes.margins(y=0.06)
        axes.autoscale_view(scalex=False)
        sheet = pixel_axes(figure)
        ys = [height - axes.transData.transform(end)[1] for end in ends]
        edge = WIDE - right
        for line, name, (x, _), y, placed in zip(
            lines, names, ends, ys, spread_labels(ys, 17, top, height - bottom), strict=True
        ):
            start = axes.transData.transform((x, 0))[0]
            sheet.plot((start + 6, edge + 8, edge + 16), (y, placed, placed), color=series(line.colour), lw=0.8)
            write(sheet, edge + 20, placed, name)
        write(sheet, 0, 12, axis, colour=MUTED)
        write(sheet, edge, height - 9, across, "right", colour=MUTED)

    return render(WIDE, height, title, draw)
