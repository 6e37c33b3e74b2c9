"""Many curves → a small picture for each, all on one scale: bands of more than a few would hide each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbm.report.figures.curves import WIDE, Curve, curve_on, curves, over_seeds, plain_axes, ticks
from fedbm.report.figures.drawing import pixel_axes, shorten, write
from fedbm.report.figures.svg import MUTED, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOGETHER = 4  # curves whose bands can be told apart
ACROSS, TALL = 185.0, 120.0  # pixels of a panel with its margin, and of its axes


def lines(drawn: Sequence[Curve], title: str, axis: str, scale: float = 1.0, width: float = WIDE) -> str:
    """In one picture as curves() draws them; of more than a few, each panel's in a picture of its own."""
    shown = {curve.panel or curve.label for curve in drawn if over_seeds(curve)}
    return (curves if len(shown) <= TOGETHER else panels)(drawn, title, axis, scale, width)


def panels(drawn: Sequence[Curve], title: str, axis: str, scale: float = 1.0, width: float = WIDE) -> str:
    """A panel's curves in colour, the first panel's mean as a thin line in every other, to compare with."""
    by_panel: dict[str, list[Curve]] = {}
    for curve in drawn:
        if over_seeds(curve):
            by_panel.setdefault(curve.panel or curve.label, []).append(curve)
    first = next(iter(by_panel))
    beside = {number: at.mean for number, at in over_seeds(by_panel[first][0], scale).items()}
    across = max(1, int(width // ACROSS))
    left, top, step = 34.0, 62.0, TALL + 62
    room = (width - left) / across
    height = top + step * -(-len(by_panel) // across) - 20

    def draw(figure: Figure) -> None:
        sheet = pixel_axes(figure)
        found = []
        for place, (name, some) in enumerate(by_panel.items()):
            x, y = left + room * (place % across), top + step * (place // across)
            axes = plain_axes(figure, x, y, room - 22, TALL)
            found.append(axes)
            if name != first:
                axes.plot(list(beside), list(beside.values()), color=MUTED, lw=0.9)
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
        dotted = "; dotted: averaged" if any(curve.averaged for some in by_panel.values() for curve in some) else ""
        write(sheet, 0, 12, f"{axis}, by round; thin: the first{dotted}", colour=MUTED)

    return render(width, height, title, draw)
