"""Measure, shorten and place the words of a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedbm.report.figures.svg import SIZE

# Widths of letters in units of the font's size: the wider of Helvetica's and of DejaVu Sans's.
WIDTHS = {
    **dict.fromkeys("'ijlI,. ·|/:;\\", 0.34),
    **dict.fromkeys('frt-!"*`()[]', 0.46),
    **dict.fromkeys("cksvxyzJL?_–", 0.59),
    **dict.fromkeys("DGHNOQwM&#+<=>^~−×±", 0.86),
    **dict.fromkeys("mW%@…", 1.02),
}


def text_width(text: str, size: float = SIZE) -> float:
    """Estimate the width of *text* in a sans-serif font; it is seldom less than the real one.

    >>> text_width("ill", 10) < text_width("one", 10) < text_width("MWM", 10)
    True
    """
    return size * sum(WIDTHS.get(c) or (1.02 if ord(c) > 0x2E7F else 0.73 if c.isupper() else 0.64) for c in text)


def max_width(texts: Iterable[str], size: float = SIZE) -> float:
    return max((text_width(text, size) for text in texts), default=0.0)


def shorten(text: str, most: int = 24) -> str:
    """Return at most this many letters. The middle is cut, because similar names often differ at the end.

    >>> shorten("FedBM · generator=no", 12)
    'FedBM ·…r=no'
    """
    tail = most // 3
    return text if len(text) <= most else f"{text[: most - tail - 1].rstrip()}…{text[-tail:].lstrip()}"


def shorten_to_width(text: str, room: float) -> str:
    """Return *text* with as many letters as are at most *room* pixels wide."""
    most = len(text)
    while most > 3 and text_width(shorten(text, most)) > room:
        most -= 1
    return shorten(text, most)


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


def wrap_widths(widths: Sequence[float], left: float, right: float) -> list[tuple[float, float]]:
    """Return (x, y) for items of these widths, placed in lines between *left* and *right*."""
    x, y, places = left, 11.0, []
    for width in widths:
        if x > left and x + width > right:
            x, y = left, y + 20
        places.append((x, y))
        x += width
    return places
