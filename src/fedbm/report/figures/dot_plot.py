"""Draw one line of dots per row on a common scale: values, their mean and its interval, and the paper's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbm.report.figures.axes import Scale, draw_marks, draw_x_axis, fitting_ticks
from fedbm.report.figures.labels import max_width, shorten_to_width, text_width
from fedbm.report.figures.palette import mark_shape
from fedbm.report.figures.svg import INK, MUTED, PAPER, WIDE, Drawing, series
from fedbm.utils.statistics import spread


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

    *zero* adds a line at zero, *bars* a bar from zero to each mean, *guides* dashed lines across all rows.
    """
    names = [shorten_to_width(row.label, 0.38 * width) for row in rows]
    left, top, right, step = 16 + max_width(names), 24.0, 24.0, 30.0
    everything = [*([0.0] if zero or bars else []), *(value for row in rows for value in row.extent)]
    margin = 0.08 * (max(everything) - min(everything)) or 1.0
    lines: list[str | DotRow] = []  # a heading or a row for every line
    for row in rows:
        lines += [row.heading, row] if row.heading and row.heading not in lines else [row]
    bottom = top + step * len(lines)
    x = Scale(min(everything) - (0 if bars else margin), max(everything) + margin, left, width - right)
    ticks = fitting_ticks(x, width / 110)
    sheet = Drawing(width, bottom + 28, title)
    sheet.write(left if left + text_width(axis) <= width else 0, 10, axis, colour=MUTED)
    for tick in ticks:
        sheet.line([(x.at(tick), top), (x.at(tick), bottom)], MUTED, 0.7, alpha=0.25)
    draw_x_axis(sheet, x, bottom, ticks)
    if zero:
        sheet.line([(x.at(0), top), (x.at(0), bottom)], INK, 1.2)
    for guide in guides:
        sheet.line([(x.at(guide), top), (x.at(guide), bottom)], MUTED, 1, (4, 3))
    remaining = iter(names)
    for place, line in enumerate(lines):
        y = top + step * (place + 0.5)
        if isinstance(line, str):
            sheet.box(left, y - step / 2, width - left - right, step, PAPER)  # hides the grid
            sheet.write(0, y + 0.1 * step, line, colour=MUTED)
        else:
            if bars:
                length = x.at(spread(line.values).mean) - x.at(0)
                sheet.box(x.at(0), y - 0.32 * step, length, 0.64 * step, series(line.colour), 0.3)
            _draw_row(sheet, x, y, line, tick=bars or len(line.values) > 1)
            sheet.write(0, y, next(remaining))
    return sheet.svg()


def _draw_row(sheet: Drawing, x: Scale, y: float, row: DotRow, tick: bool) -> None:
    """Draw values on the row's line, with a tick at their mean, or below their interval."""
    colour = series(row.colour)
    if row.paper:
        middle, std = row.paper
        if std:
            sheet.line([(x.at(middle - std), y), (x.at(middle + std), y)], MUTED, 12, alpha=0.22)
        half, thick = (6, 2) if std else (8, 3)
        sheet.line([(x.at(middle), y - half), (x.at(middle), y + half)], MUTED, thick)
    if row.interval:
        mean, low, high = row.interval
        level = y - 4.2 if row.values else y
        sheet.line([(x.at(low), level), (x.at(high), level)], colour, 2.4, alpha=0.55)
        draw_marks(sheet, [(x.at(mean), level)], row.colour, 9)
        values = [(x.at(value), y + 7.2) for value in row.values]
        sheet.marks(values, mark_shape(row.colour)[0], 5, colour, alpha=0.55)
    else:
        if tick:
            mean = x.at(spread(row.values).mean)
            sheet.line([(mean, y - 9.6), (mean, y + 9.6)], INK, 1.6)
        draw_marks(sheet, [(x.at(value), y) for value in row.values], row.colour, 9, 0.9)
