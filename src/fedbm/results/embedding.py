"""features.json → a picture: test images as points in the colour of their class, text anchors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedbm.results.compare import Group
from fedbm.results.drawing import pixel_axes, shorten, write
from fedbm.results.sections import Panel, Picture, Section
from fedbm.results.svg import INK, PAPER, SERIES, render, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 430.0
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
        "t-SNE of test images’ features: a point is an image, colour and shape are its true class. A name on a tag is "
        "the class’s text, where the classifier is made of texts; otherwise names stand at the middle of their class. "
        "Distances between far groups mean nothing."
    )
    why = "" if pictures else "No run here has features.json; 'fedbm features RUN' computes it."
    return Section("Features of test images", note, (Panel("Features", tuple(pictures)),) if pictures else (), why)


def scatter(features: Mapping[str, Any], title: str) -> str:
    points, labels, names = features["points"], features["labels"], features["classes"]
    anchors = features["anchors"]
    many = len(names) > 2 * len(SERIES)

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
        axes.set_axis_off()
        for k in range(len(names)):
            own = [point for point, label in zip(points, labels, strict=True) if label == k]
            if own:
                xs, ys = zip(*own, strict=True)
                mark = MARKS[k // len(SERIES) % len(MARKS)]
                axes.plot(xs, ys, mark, ms=4, color=series(k), mec=PAPER, mew=0.3, alpha=0.8, linestyle="none")
        axes.margins(0.06)
        axes.autoscale_view()
        sheet = pixel_axes(figure)
        for k, name in enumerate(names):
            own = [point for point, label in zip(points, labels, strict=True) if label == k]
            place = anchors[k] if anchors else _middle(own) if own else None
            if place is None:
                continue
            x, y = axes.transData.transform(place)
            if anchors:
                sheet.plot(x, SIDE - y, "*", ms=13, color=series(k), mec=INK, mew=0.9)
            if not many:
                write(
                    sheet,
                    x + (9 if x < SIDE * 0.7 else -9),
                    SIDE - y,
                    shorten(name, 18),
                    "left" if x < SIDE * 0.7 else "right",
                    size=11,
                )

    return render(SIDE, SIDE, title, draw)


def _middle(points: list[list[float]]) -> tuple[float, float]:
    """The median in each direction: groups have stragglers."""
    xs, ys = (sorted(values)[len(points) // 2] for values in zip(*points, strict=True))
    return xs, ys
