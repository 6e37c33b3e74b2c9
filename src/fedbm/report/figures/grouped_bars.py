"""Draw groups of bars, such as one group per clinic with a bar per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbm.report.figures.drawing import WIDE, Sheet, max_width, plain_axes, short_names, ticks
from fedbm.report.figures.palette import dash_pattern
from fedbm.report.figures.svg import INK, MUTED, PAPER, render, series
from fedbm.utils.statistics import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR, GAP, HEAD = 20.0, 14.0, 24.0  # pixels: a bar, the space after a group, and a group's heading


@dataclass(frozen=True)
class Bar:
    """The values of one row in one group, in percent, one for each seed."""

    label: str
    colour: int
    values: tuple[float, ...]


def grouped_bars(groups: Sequence[tuple[str, Sequence[Bar]]], title: str, axis: str, width: float = WIDE) -> str:
    """Draw a bar up to the mean of each row, and a line from its lowest to its highest seed, under each heading."""
    names = {bar.label: "" for _, bars in groups for bar in bars}
    names = dict(zip(names, short_names([*names], width), strict=True))
    left, right, top = 16 + max_width([*names.values()]), 56.0, 24.0
    height = sum(HEAD + BAR * len(bars) + GAP for _, bars in groups)
    longest = max(value for _, bars in groups for bar in bars for value in bar.values)

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, left, top, width - left - right, height)
        axes.grid(axis="x", color=MUTED, alpha=0.25, linewidth=0.7)
        axes.xaxis.set_major_locator(ticks(width / 110))
        axes.set_xlim(0, 1.02 * longest or 1.0)
        axes.set_ylim(height, 0)
        axes.set_yticks([])
        sheet = Sheet(figure)
        sheet.write(left, 10, axis, colour=MUTED)
        y = 0.0
        for heading, bars in groups:
            axes.axhspan(y - GAP, y + HEAD, color=PAPER, linewidth=0, zorder=0.6)  # hides the grid behind the heading
            sheet.write(0, top + y + HEAD / 2, heading, colour=MUTED)
            y += HEAD
            for bar in bars:
                found, hollow = spread(bar.values), bool(dash_pattern(bar.colour))
                axes.barh(
                    y + BAR / 2,
                    found.mean,
                    height=BAR - 5,
                    facecolor=PAPER if hollow else series(bar.colour),
                    edgecolor=series(bar.colour),
                    linewidth=1.6 if hollow else 0,
                )
                if len(bar.values) > 1:
                    axes.plot([found.low, found.high], [y + BAR / 2] * 2, color=INK, lw=1.4, clip_on=False)
                sheet.write(0, top + y + BAR / 2, names[bar.label])
                sheet.write(width, top + y + BAR / 2, f"{found.mean:.1f}", "right")
                y += BAR
            y += GAP

    return render(width, top + height + 28, title, draw)
