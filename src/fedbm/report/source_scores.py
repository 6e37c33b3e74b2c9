"""Scores on the test images of each source: clinics or scanners of a column, or the sites of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from fedbm.report.document import Cell, Column, Figure, Figures, Row, Section, Table
from fedbm.report.figures.dot_plot import DotRow, dot_plot
from fedbm.report.grouping import Group, MethodRuns
from fedbm.report.tables import BLOCKS, METRICS, Colours
from fedbm.runs.run_file_types import SourceConfusion
from fedbm.utils.metrics import scores_from_confusion
from fedbm.utils.statistics import spread
from fedbm.utils.text import format_count

MOMENTS = {key: BLOCKS[key] for key in ("averaged", "best", "last")}  # the first of them depends least on luck
SHOWN = {key: METRICS[key] for key in ("f1", "accuracy")}
OWN_MODEL = "own model"  # accuracy of a site's personal model on its own images, at the last round
HELD_OUT_NOTE = (
    "The global model’s scores on all images of each client that never trains. Bar: mean over seeds; dot: a seed. "
    "Random clients differ from seed to seed; the sites of a column are the same."
)
NOTE = (
    "The global model’s scores on the test images of each source. Macro-F1 is the mean over the classes that the "
    "source has, so compare it between methods, not between sources. Bar: mean over seeds; dot: a seed."
)
Scores = dict[str, dict[str, list[float]]]  # source → metric → one value per seed


def source_sections(group: Group, name: str, colours: Colours) -> tuple[Section, ...]:
    """Return sections with bars and a table by source and by held-out client; none for what no run of the group has."""
    return (
        *_section(group, name, colours, "sources", "source", "Source by source", NOTE),
        *_section(group, name, colours, "held_out", "held-out client", "Held-out clients", HELD_OUT_NOTE),
    )


def _section(
    group: Group, name: str, colours: Colours, field: str, by: str, title: str, note: str
) -> tuple[Section, ...]:
    panels: dict[str, list[Figure]] = {}
    table: Table | None = None
    images = _images(group, field)
    rows = [row for row in group.rows if _sources(row, field)]
    for moment, words in MOMENTS.items():
        found = {row.name: scores for row in rows if (scores := source_scores(row, moment, field))}
        if not found:
            continue
        panels[words] = [
            Figure(partial(_draw, found, images, colours, metric, f"{shown} by {by}, {words.lower()}; {group.title}"))
            for metric, shown in SHOWN.items()
        ]
        if table is None and len(found) == len(rows):  # a row may have no averaged model
            table = _table(found, images, colours, f"{name} by {by}", f"{words}.")
    return (Section(title, note, (Figures(panels), table), whole=True),) if table else ()


def source_scores(row: MethodRuns, moment: str, field: str = "sources") -> Scores:
    """Return accuracy and macro-F1 by source (or by held-out client), a value for every seed that has them."""
    scores: Scores = {}
    for source in _sources(row, field):
        matrix = getattr(source, moment)
        if matrix is not None and np.any(matrix):
            own = {} if source.personal is None else {OWN_MODEL: source.personal}
            for metric, value in {**scores_from_confusion(np.array(matrix)), **own}.items():
                scores.setdefault(source.name, {}).setdefault(metric, []).append(value)
    return scores


def _sources(row: MethodRuns, field: str) -> list[SourceConfusion]:
    return [source for run in row.runs if run.details for source in run.details[field] or ()]


def _images(group: Group, field: str) -> dict[str, str]:
    """Return source → its number of images in words, "" if seeds differ or several models score each image."""
    counts: dict[str, set[int]] = {}
    for row in group.rows:
        for source in _sources(row, field):
            total = int(np.sum(source.last))
            counts.setdefault(source.name, set()).update({total} if row.global_model else {})
    return {
        name: f", {format_count(n.pop(), 'test image' if field == 'sources' else 'image')}" if len(n) == 1 else ""
        for name, n in counts.items()
    }


def _draw(found: Mapping[str, Scores], images: Mapping[str, str], colours: Colours, metric: str, title: str) -> str:
    rows = [
        DotRow(name, colours[name], tuple(100 * value for value in scores[source][metric]), heading=f"{source}{words}")
        for source, words in images.items()
        for name, scores in found.items()
        if source in scores
    ]
    return dot_plot(rows, title, f"{SHOWN[metric]} of every seed, %", bars=True)


def _table(found: Mapping[str, Scores], images: Mapping[str, str], colours: Colours, name: str, caption: str) -> Table:
    has_own = any(OWN_MODEL in by_metric for scores in found.values() for by_metric in scores.values())
    columns = SHOWN | ({OWN_MODEL: "Accuracy, site’s own model, last round"} if has_own else {})
    rows = []
    for source, words in images.items():
        for row, scores in found.items():
            if source in scores:
                spreads = {metric: spread(scores[source][metric]) for metric in columns if metric in scores[source]}
                cells = {"n": Cell(spreads["f1"].n, "count")}
                cells |= {metric: Cell(value.mean, "percent", value.std) for metric, value in spreads.items()}
                rows.append(Row(row, cells, f"{source}{words}", colours[row]))
    shown = (Column("n", "n"), *(Column(metric, title) for metric, title in columns.items()))
    return Table(name, shown, tuple(rows), caption, small=True)
