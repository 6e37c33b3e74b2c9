"""features.json → a picture: test images as points in the colour of their class, text anchors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedbm.results.compare import Group
from fedbm.results.drawing import pixel_axes, shorten, text_width, write
from fedbm.results.figures import in_lines
from fedbm.results.sections import Panel, Picture, Section
from fedbm.results.svg import INK, MUTED, PAPER, SERIES, render, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 430.0
SMALL = 11.5  # letters
MARKS = ("o", "s", "^", "D", "v", "P", "X")  # beyond the palette classes differ by shape as well


def embedding(group: Group) -> Section:
    """One picture for the first seed of each row that has features."""
    pictures = []
    for row in group.rows:
        run = next((run for run in row.runs if run.features is not None), None)
        if run is not None and run.features is not None:
            title = f"t-SNE of test features of {row.name}, seed {run.seed}; {group.title}"
            pictures.append(Picture(scatter(run.features, title), f"{row.name}, seed {run.seed}"))
    note = (
        "t-SNE of test images’ features: a point is an image, colour and shape are its true class. A star is a "
        "class’s text, where the classifier is made of texts: images should gather around it "
        "(images and texts are each centred by their mean). "
        "Distances between far groups mean nothing."
    )
    why = (
        "" if pictures else "No run here has features; 'fedbm features RUN' computes them and renews the run's record."
    )
    return Section("Features of test images", note, (Panel("Features", tuple(pictures)),) if pictures else (), why)


def scatter(features: Mapping[str, Any], title: str) -> str:
    """Points and, as stars, anchors; below them which colour and shape is which class, unless there are very many."""
    points, labels, anchors = features["points"], features["labels"], features["anchors"]
    names = [shorten(name, 18) for name in features["classes"]]
    named = len(names) <= 2 * len(SERIES)
    legend = in_lines([24 + text_width(name, SMALL) for name in names], 8, SIDE) if named else []
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
        sheet = pixel_axes(figure)
        for k, place in enumerate(anchors or ()):
            x, y = axes.transData.transform(place)
            if named:
                right = x > 0.7 * SIDE
                write(sheet, x - 10 if right else x + 10, height - y, names[k], "right" if right else "left", SMALL)
        for k, (x, y) in enumerate(legend):
            sheet.plot(x + 4, SIDE + y, _mark(k), ms=7, color=series(k))
            write(sheet, x + 13, SIDE + y, names[k], size=SMALL, colour=MUTED)

    return render(SIDE, height, title, draw)


def _mark(k: int) -> str:
    return MARKS[k // len(SERIES) % len(MARKS)]
