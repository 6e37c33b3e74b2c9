"""Scores on the test images of each source: clinics or scanners of a column, or the sites of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from fedbm.report.document import Cell, Figure, Figures, Row, Section, Table
from fedbm.report.figures.dot_plot import DotRow, dot_plot
from fedbm.report.group import Group, GroupRow
from fedbm.report.tables import BLOCKS, METRICS, Colours, make_columns, score_cell
from fedbm.runs.run_file_types import SourceConfusion
from fedbm.utils.metrics import scores_from_confusion
from fedbm.utils.statistics import spread_or_none
from fedbm.utils.text import format_range

MOMENTS = {key: BLOCKS[key] for key in ("averaged", "best", "last")}  # the first of them depends least on luck
SHOWN = {key: METRICS[key] for key in ("f1", "accuracy")}
IMAGES = "images"
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
        *_section(group, name, colours, "sources", "Source by source", NOTE),
        *_section(group, name, colours, "held_out", "Held-out clients", HELD_OUT_NOTE),
    )


def _section(group: Group, name: str, colours: Colours, field: str, title: str, note: str) -> tuple[Section, ...]:
    panels: dict[str, list[Figure]] = {}
    table: Table | None = None
    rows = [row for row in group.rows if _sources(row, field)]
    for moment, words in MOMENTS.items():
        found = {row.name: scores for row in rows if (scores := source_scores(row, moment, field))}
        if not found:
            continue
        about = f"{title.lower()}, {words.lower()}; {group.title}"
        panels[words] = [
            Figure(partial(_draw, found, colours, metric, f"{shown}, {about}")) for metric, shown in SHOWN.items()
        ]
        if table is None and len(found) == len(rows):  # a row may have no averaged model
            table = _table(found, colours, f"{name}, {title.lower()}", f"{words}.")
    return (Section(title, note, (Figures(panels), table), whole=True),) if table else ()


def source_scores(row: GroupRow, moment: str, field: str = "sources") -> Scores:
    """Return accuracy and macro-F1 by source (or by held-out client), a value for every seed that has them."""
    scores: Scores = {}
    for source in _sources(row, field):
        matrix = getattr(source, moment)
        if matrix is not None and np.any(matrix):
            own = {} if source.personal is None else {OWN_MODEL: source.personal}
            images = {IMAGES: int(np.sum(matrix))} if row.global_model else {}  # else an image is counted several times
            found = {**scores_from_confusion(np.array(matrix)), **own, **images}
            for metric, value in found.items():
                scores.setdefault(source.name, {}).setdefault(metric, []).append(value)
    return scores


def _sources(row: GroupRow, field: str) -> list[SourceConfusion]:
    return [source for run in row.runs if run.details for source in run.details[field] or ()]


def _by_source(found: Mapping[str, Scores]) -> list[tuple[str, str, dict[str, list[float]]]]:
    """Return (source, row, scores), source by source."""
    sources = dict.fromkeys(source for scores in found.values() for source in scores)
    return [(source, row, found[row][source]) for source in sources for row in found if source in found[row]]


def _draw(found: Mapping[str, Scores], colours: Colours, metric: str, title: str) -> str:
    rows = [
        DotRow(name, colours[name], tuple(100 * value for value in scores[metric]), heading=source)
        for source, name, scores in _by_source(found)
    ]
    return dot_plot(rows, title, f"{SHOWN[metric]} of every seed, %", bars=True)


def _table(found: Mapping[str, Scores], colours: Colours, name: str, caption: str) -> Table:
    rows = []
    for source, row, scores in _by_source(found):
        images = [int(number) for number in scores.get(IMAGES, ())]
        cells = {"n": Cell(len(scores["f1"]), "count"), IMAGES: Cell(format_range(images) if images else None)}
        cells |= {metric: score_cell(spread_or_none(scores.get(metric, ()))) for metric in (*SHOWN, OWN_MODEL)}
        rows.append(Row(row, cells, source, colours[row]))
    titles = {"n": "n", IMAGES: "Images", **SHOWN}
    if any(row.cells[OWN_MODEL].value is not None for row in rows):
        titles[OWN_MODEL] = "Accuracy, site’s own model, last round"
    return Table(name, make_columns(titles), tuple(rows), caption, small=True)
