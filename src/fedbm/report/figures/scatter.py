"""Draw features.json: test images as points in the colour of their class, class texts as stars with names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbm.report.figures.drawing import Sheet, shorten, spread_labels, text_width, wrap_widths
from fedbm.report.figures.svg import INK, MUTED, PAPER, SERIES, render, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.01, 1 - 0.99 * SIDE / height, 0.98, 0.98 * SIDE / height))
        axes.set_axis_off()
        for k in range(len(names)):
            own = [point for point, label in zip(points, labels, strict=True) if label == k]
            if own:
                xs, ys = zip(*own, strict=True)
                axes.plot(xs, ys, _mark(k), ms=4.5, color=series(k), mec=PAPER, mew=0.3, alpha=0.85, linestyle="none")
        for k, (x, y) in enumerate(anchors or ()):
            axes.plot(x, y, "*", ms=15, color=series(k), mec=INK, mew=1.0)
        axes.margins(0.06)
        axes.autoscale_view()
        sheet = Sheet(figure)
        if named and anchors:
            stars = [(x, height - y) for x, y in map(axes.transData.transform, anchors)]
            heights = spread_labels([y for _, y in stars], LINE, 0, SIDE)
            for (x, _), y, name in zip(stars, heights, names, strict=True):
                right = x > TURN
                sheet.write(x - 10 if right else x + 10, y, name, "right" if right else "left", SMALL)
        for k, (x, y) in enumerate(legend):
            sheet.plot(x + 4, SIDE + y, _mark(k), ms=7, color=series(k))
            sheet.write(x + 13, SIDE + y, names[k], size=SMALL, colour=MUTED)

    return render(SIDE, height, title, draw)


def _mark(k: int) -> str:
    """Return the mark of class k: no two of 49 classes share both mark and colour.

    >>> "".join(map(_mark, range(7)))
    'os^DvPX'
    >>> len({(series(k), _mark(k)) for k in range(len(SERIES) * len(MARKS))}) == len(SERIES) * len(MARKS)
    True
    """
    return MARKS[(k + k // len(SERIES)) % len(MARKS)]
