"""Placing things by the pixel: x to the right, y down, as the page counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fedbm.report.figures.svg import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = 13.0  # of the text, in pixels


def pixel_axes(figure: Figure) -> Axes:
    """Axes over the whole figure whose coordinates are pixels from the top left."""
    width, height = figure.get_size_inches() * figure.dpi
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return axes


def write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    align: Literal["left", "center", "right"] = "left",
    size: float = SIZE,
    colour: str = INK,
    turn: float = 0,
) -> None:
    """*text* with the middle of its small letters at height y (turned text: its start at x, y)."""
    axes.figure.text(  # not axes.text: its clipping doubles the time of a matrix
        x,
        y + (0 if turn else 0.35 * size),
        text,
        transform=axes.transData,
        ha=align,
        va="baseline",
        fontsize=size,
        color=colour,
        rotation=turn,
        rotation_mode="anchor",
    )


def text_width(text: str, size: float = SIZE) -> float:
    """Room to leave for *text* in whatever font: ideographs are square, capitals narrower, other letters about half."""
    return size * sum(1.0 if ord(letter) > 0x2E7F else 0.68 if letter.isupper() else 0.58 for letter in text)


def widest(texts: Sequence[str], size: float = SIZE) -> float:
    return max((text_width(text, size) for text in texts), default=0.0)


def shorten(text: str, most: int = 24) -> str:
    """At most this many letters; the middle goes, because names that begin alike differ at the end.

    >>> shorten("FedBM · generator=no", 12)
    'FedBM ·…r=no'
    """
    tail = most // 3
    return text if len(text) <= most else f"{text[: most - tail - 1].rstrip()}…{text[-tail:].lstrip()}"


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near *wanted*, in the same order, at least *gap* apart and, if they fit, within low … high.

    >>> apart([10.0, 12.0, 50.0], gap=5.0, low=0.0, high=52.0)
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
