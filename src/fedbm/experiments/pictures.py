"""A column's scores as a picture: a dot for every seed, their mean, and what the paper prints."""

from __future__ import annotations

from collections.abc import Mapping

from fedbm.experiments.analysis import Column, Line
from fedbm.experiments.tables import SHOWN
from fedbm.results.figures import Dots, dots


def scores(column: Column, colours: Mapping[str, int], metric: str, width: float) -> str:
    """At the round chosen on validation, in percent; rows without a finished run are not drawn."""
    drawn = [_dots(line, colours, metric) for line in column.lines if line.row is not None]
    words = SHOWN[metric]
    beside = any(row.beside for row in drawn)
    key = "tick: mean; grey: the paper" if beside else "tick: mean"
    told = f"{words} of every seed at the round chosen on validation{', and the paper’s' if beside else ''}"
    return dots(drawn, f"{told}; {column.title}", f"{words} of every seed, %; {key}", width)


def _dots(line: Line, colours: Mapping[str, int], metric: str) -> Dots:
    assert line.row is not None
    paper = (line.published.mean[metric], line.published.std[metric]) if line.published and line.comparable else None
    values = tuple(100 * value for value in line.row.by_seed("best", metric).values())
    return Dots(line.name, colours[line.name], values, paper)
