"""Draw features.json: test images as points in the colour of their class, class texts as stars with names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbm.report.figures.axes import Scale, value_range
from fedbm.report.figures.labels import shorten, spread_labels, text_width, wrap_widths
from fedbm.report.figures.svg import INK, MUTED, PAPER, SERIES, Drawing, series

if TYPE_CHECKING:
    from fedbm.runs.run_file_types import Features

SIDE = 430.0
SMALL = 11.5  # size of letters, in pixels
LINE = 13.0  # distance of two lines of text
TURN = 0.7 * SIDE  # names of stars beyond this are written to their left
MARKS = ("o", "s", "^", "D", "v", "P", "X")  # by class, for readers and printers without colours


def scatter(features: Features, title: str) -> str:
    """Draw points, stars for class texts, and below them a legend of classes unless there are very many."""
    points, labels, anchors = features.points, features.labels, features.anchors
    names = [shorten(name, 18) for name in features.classes]
    named = len(names) <= 2 * len(SERIES)
    legend = wrap_widths([24 + text_width(name, SMALL) for name in names], 8, SIDE) if named else []
    height = SIDE + (legend[-1][1] + 12 if legend else 0)
    everything = [*points, *(anchors or ())]
    x = Scale(*value_range((a for a, _ in everything), 0.06), 0.01 * SIDE, 0.99 * SIDE)
    y = Scale(*value_range((b for _, b in everything), 0.06), 0.99 * SIDE, 0.01 * SIDE)
    sheet = Drawing(SIDE, height, title)
    for k in range(len(names)):
        own = [(x.at(a), y.at(b)) for (a, b), label in zip(points, labels, strict=True) if label == k]
        sheet.marks(own, _mark(k), 4.5, series(k), PAPER, 0.3, alpha=0.85)
    stars = [(x.at(a), y.at(b)) for a, b in anchors or ()]
    for k, star in enumerate(stars):
        sheet.marks([star], "*", 15, series(k), INK)
    if named and stars:
        heights = spread_labels([down for _, down in stars], LINE, 0, SIDE)
        for (across, _), down, name in zip(stars, heights, names, strict=True):
            turned = across > TURN
            x_name = across - 10 if turned else across + 10
            sheet.write(x_name, down, name, "end" if turned else "start", SMALL, halo=True)
    for k, (across, down) in enumerate(legend):
        sheet.marks([(across + 4, SIDE + down)], _mark(k), 7, series(k), series(k))
        sheet.write(across + 13, SIDE + down, names[k], size=SMALL, colour=MUTED)
    return sheet.svg()


def _mark(k: int) -> str:
    """Return the mark of class k: no two of 49 classes share both mark and colour.

    >>> "".join(map(_mark, range(7)))
    'os^DvPX'
    >>> len({(series(k), _mark(k)) for k in range(len(SERIES) * len(MARKS))}) == len(SERIES) * len(MARKS)
    True
    """
    return MARKS[(k + k // len(SERIES)) % len(MARKS)]
