"""Place axes, text and marks by the pixel: x to the right, y down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedbm.report.figures.palette import mark_shape
from fedbm.report.figures.svg import INK, MUTED, PAPER, series

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

SIZE = 13.0  # of text, in pixels
WIDE = 880.0  # pixels of a figure next to a column of notes


class Sheet:
    """The whole figure, with pixels from the top left as coordinates.

    It draws on the figure itself. Axes would take twice as long as all that is drawn here: they make ticks first.
    """

    def __init__(self, figure: Figure) -> None:
        from matplotlib.transforms import Affine2D

        width, self.height = figure.get_size_inches() * figure.dpi
        self.figure = figure
        self.pixels = Affine2D().scale(1 / width, -1 / self.height).translate(0, 1) + figure.transFigure

    def plot(self, x: npt.ArrayLike, y: npt.ArrayLike, mark: str = "", **style: Any) -> None:
        """Draw a line through the points, or a *mark* at each of them."""
        from matplotlib.lines import Line2D

        if mark:
            style |= {"marker": mark, "linestyle": "none"}
        self._add(Line2D(np.atleast_1d(x), np.atleast_1d(y), transform=self.pixels, **style), 0.3)

    def box(self, x: float, y: float, width: float, height: float, colour: str, shade: float) -> None:
        """Fill a rectangle."""
        from matplotlib.patches import Rectangle

        filled = Rectangle((x, y), width, height, facecolor=colour, alpha=shade, linewidth=0, transform=self.pixels)
        self._add(filled, 0.2)

    def cells(self, colours: npt.NDArray[np.float64], left: float, top: float, right: float, bottom: float) -> None:
        """Fill a rectangle with a matrix of colours (rows × columns × RGBA, from 0 to 1)."""
        from matplotlib.artist import Artist
        from matplotlib.transforms import Affine2D

        picture = (colours * 255).astype(np.uint8)
        corner, size = (left, self.height - top), Affine2D().scale(right - left, top - bottom)

        class Cells(Artist):
            def draw(self, renderer: Any) -> None:
                gc = renderer.new_gc()
                renderer.draw_image(gc, *corner, picture, size)
                gc.restore()

        self._add(Cells(), 0.1)

    def write(
        self,
        x: float,
        y: float,
        text: str,
        align: Literal["left", "center", "right"] = "left",
        size: float = SIZE,
        colour: str = INK,
        turn: float = 0,
    ) -> None:
        """Write *text* with the middle of its small letters at height y; turned text starts at (x, y)."""
        self.figure.text(
            x,
            y + (0 if turn else 0.35 * size),
            text,
            transform=self.pixels,
            ha=align,
            va="baseline",
            fontsize=size,
            color=colour,
            rotation=turn,
            rotation_mode="anchor",
        )

    def _add(self, artist: Artist, layer: float) -> None:
        """Draw *artist* in front of all axes, which are in layer 0, and of lower layers."""
        artist.set_zorder(layer)
        self.figure.add_artist(artist)


def text_width(text: str, size: float = SIZE) -> float:
    """Estimate the width of *text* in any font: ideographs are square, capitals narrower, other letters about half."""
    return size * sum(1.0 if ord(letter) > 0x2E7F else 0.68 if letter.isupper() else 0.58 for letter in text)


def max_width(texts: Sequence[str], size: float = SIZE) -> float:
    return max((text_width(text, size) for text in texts), default=0.0)


def shorten(text: str, most: int = 24) -> str:
    """Return at most this many letters. The middle is cut, because similar names often differ at the end.

    >>> shorten("FedBM · generator=no", 12)
    'FedBM ·…r=no'
    """
    tail = most // 3
    return text if len(text) <= most else f"{text[: most - tail - 1].rstrip()}…{text[-tail:].lstrip()}"


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near *wanted*, in the same order, at least *gap* apart and, if they fit, within low … high.

    >>> spread_labels([10.0, 12.0, 50.0], gap=5.0, low=0.0, high=52.0)
    [10.0, 15.0, 50.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    below = low - gap
    for index in order:
        placed[index] = below = max(wanted[index], below + gap)
    above = high + gap
    for index in reversed(order):
        placed[index] = above = min(placed[index], above - gap)
    return placed


def plain_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Return axes at these pixels, with a baseline and small grey numbers."""
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


def marker(number: int, size: float) -> dict[str, Any]:
    """Return the style of a mark; marks of the same colour differ in shape or are hollow."""
    shape, hollow = mark_shape(number)
    size *= {"o": 1.0, "s": 0.9, "D": 0.8}[shape]  # about equal areas
    if hollow:
        return {"marker": shape, "ms": size - 1.5, "mfc": PAPER, "mec": series(number), "mew": 2.0}
    return {"marker": shape, "ms": size, "mec": PAPER, "mew": 1.3}


def wrap_widths(widths: Sequence[float], left: float, right: float) -> list[tuple[float, float]]:
    """Return (x, y) for items of these widths, placed in lines between *left* and *right*."""
    x, y, places = left, 11.0, []
    for width in widths:
        if x > left and x + width > right:
            x, y = left, y + 20
        places.append((x, y))
        x += width
    return places


def short_names(labels: Sequence[str], width: float = WIDE) -> list[str]:
    """Return labels that leave room for what they name in a figure of this width."""
    return [shorten(label, int(width / 22)) for label in labels]
