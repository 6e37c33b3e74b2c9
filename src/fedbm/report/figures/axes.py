"""Place values on a drawing: scales, round ticks, axes, and marks that tell series apart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedbm.report.figures.labels import max_width
from fedbm.report.figures.palette import mark_shape
from fedbm.report.figures.svg import MUTED, PAPER, Drawing, Point, series

LABEL_GAP = 12.0  # pixels between two labels of an axis


@dataclass(frozen=True)
class Scale:
    """A linear map from values low … high to pixels start … end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def value_range(values: Iterable[float], margin: float = 0.0) -> tuple[float, float]:
    """Return the lowest and the highest value with this share of their distance around them; equal values get room."""
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = 0.05 * abs(low) or 0.05
        low, high = low - room, high + room
    room = margin * (high - low)
    return low - room, high + room


def round_ticks(low: float, high: float, most: float, integer: bool = False) -> dict[float, str]:
    """Return round numbers from low to high with labels: at most *most* steps of 1, 2 or 5 times a power of ten.

    >>> round_ticks(21.0, 68.0, 6)
    {30.0: '30', 40.0: '40', 50.0: '50', 60.0: '60'}
    >>> round_ticks(-0.6, 0.5, 4)
    {-0.5: '−0.5', 0.0: '0.0', 0.5: '0.5'}
    >>> [*round_ticks(0, 4e-5, 2).values(), *round_ticks(0, 3e12, 4).values()]
    ['0', '2e−5', '4e−5', '0', '1e12', '2e12', '3e12']
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10):
        step = max(1.0, factor * power) if integer else factor * power
        found = [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        if len(found) <= most + 1:
            break
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    style = "g" if digits > 4 or max(map(abs, found)) >= 1e6 else f".{digits}f"
    return {value: re.sub(r"e\+?(-?)0*", r"e\1", f"{value:{style}}").replace("-", "−") for value in found}


def fitting_ticks(scale: Scale, most: float, integer: bool = False) -> dict[float, str]:
    """Return round ticks of a horizontal axis whose labels fit next to each other."""
    while True:
        ticks = round_ticks(scale.low, scale.high, most, integer)
        needed = (max_width(ticks.values()) + LABEL_GAP) * (len(ticks) - 1)
        if most <= 2 or needed <= scale.at(max(ticks)) - scale.at(min(ticks)):
            return ticks
        most -= 1


def draw_x_axis(sheet: Drawing, x: Scale, bottom: float, ticks: Mapping[float, str]) -> None:
    """Draw a baseline with labels below it."""
    sheet.line([(x.start, bottom), (x.end, bottom)], MUTED, 0.8)
    for value, label in ticks.items():
        sheet.write(x.at(value), bottom + 11.5, label, "middle", colour=MUTED)


def draw_y_axis(sheet: Drawing, x: Scale, y: Scale, ticks: Mapping[float, str]) -> None:
    """Draw a thin line across at every tick, with its label at the left."""
    for value, label in ticks.items():
        sheet.line([(x.start, y.at(value)), (x.end, y.at(value))], MUTED, 0.7, alpha=0.25)
        if label:
            sheet.write(x.start - 6, y.at(value), label, "end", colour=MUTED)


def draw_marks(sheet: Drawing, points: Iterable[Point], number: int, size: float, alpha: float = 1) -> None:
    """Draw the marks of series *number*; marks of the same colour differ in shape or are hollow."""
    shape, hollow = mark_shape(number)
    size *= {"o": 1.0, "s": 0.9, "D": 0.8}[shape]  # about equal areas
    if hollow:
        sheet.marks(points, shape, size - 1.5, PAPER, series(number), 2.0, alpha)
    else:
        sheet.marks(points, shape, size, series(number), PAPER, 1.3, alpha)
