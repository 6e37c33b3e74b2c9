"""Differences with their intervals, one below the other: where a bar crosses zero, nothing is shown to differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbm.report.figures.curves import WIDE, dot, lanes
from fedbm.report.figures.svg import INK, MUTED, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Interval:
    """A label's difference, from low to high; *beside* is another's, to compare with."""

    label: str
    mean: float
    low: float
    high: float
    beside: float | None = None


def intervals(rows: Sequence[Interval], colour: int, title: str, axis: str, width: float = WIDE) -> str:
    """A dot for every difference on its interval, zero as a line through all, grey ticks for what is beside."""
    everything = [0.0, *(value for row in rows for value in (row.low, row.high))]
    everything += [row.beside for row in rows if row.beside is not None]

    def draw(axes: Axes) -> None:
        axes.axvline(0.0, color=INK, lw=1.2)
        for place, row in enumerate(rows):
            axes.plot([row.low, row.high], [place, place], color=series(colour), lw=2.4, alpha=0.55)
            if row.beside is not None:
                axes.plot(row.beside, place, "|", ms=16, mew=3, color=MUTED)
            axes.plot(row.mean, place, "o", color=series(colour), **dot(colour, 9))

    return lanes([row.label for row in rows], everything, title, axis, draw, width)
