"""Scores along an axis, such as the number of clients: the mean over seeds as a line, lowest to highest as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbm.report.figures.curves import WIDE, plain_axes, ticks
from fedbm.report.figures.drawing import apart, pixel_axes, shorten, widest, write
from fedbm.report.figures.palette import dashes
from fedbm.report.figures.svg import MUTED, PAPER, render, series
from fedbm.report.statistics import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Course:
    """One label's values by place on the axis, a value per seed; a place without any is left open."""

    label: str
    colour: int
    values: Mapping[int, Sequence[float]]  # place on the axis → values


def along(
    drawn: Sequence[Course], places: Sequence[str], title: str, axis: str, across: str, width: float = WIDE
) -> str:
    """Places stand at equal distances, whatever their values; values × 100."""
    drawn = [course for course in drawn if course.values]
    names = [shorten(course.label, int(width / 22)) for course in drawn]
    left, top, right, bottom = 40.0, 34.0, 26 + widest(names), 58.0
    height = max(330.0, top + bottom + 30 * len(drawn))

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, left, top, width - left - right, height - top - bottom)
        axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.yaxis.set_major_locator(ticks(6))
        axes.set_xlim(-0.3, len(places) - 0.7)
        axes.set_xticks(range(len(places)), places)
        ends = []
        for course in drawn:
            at = sorted(course.values)
            stats = [spread([100 * value for value in course.values[place]]) for place in at]
            colour, pattern = series(course.colour), dashes(course.colour)
            axes.fill_between(at, [s.low for s in stats], [s.high for s in stats], color=colour, alpha=0.1, linewidth=0)
            (line,) = axes.plot(at, [s.mean for s in stats], "-o", color=colour, lw=2, ms=6, mec=PAPER, mew=1)
            if pattern:
                line.set_dashes(pattern)
            ends.append((at[-1], stats[-1].mean))
        axes.margins(y=0.06)
        axes.autoscale_view(scalex=False)
        sheet = pixel_axes(figure)
        ys = [height - axes.transData.transform(end)[1] for end in ends]
        edge = width - right
        for course, name, (x, _), y, placed in zip(
            drawn, names, ends, ys, apart(ys, 17, top, height - bottom), strict=True
        ):
            start = axes.transData.transform((x, 0))[0]
            sheet.plot((start + 6, edge + 8, edge + 16), (y, placed, placed), color=series(course.colour), lw=0.8)
            write(sheet, edge + 20, placed, name)
        write(sheet, 0, 12, axis, colour=MUTED)
        write(sheet, edge, height - 9, across, "right", colour=MUTED)

    return render(width, height, title, draw)
