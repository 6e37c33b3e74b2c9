"""Columns as pictures: every seed's score with their mean, what the leading row is ahead by, and the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbm.experiments.analysis import Column, Line
from fedbm.experiments.tables import SHOWN
from fedbm.experiments.wording import foremost
from fedbm.report.figures.curves import Dots, dots
from fedbm.report.figures.drawing import shorten
from fedbm.report.figures.intervals import Interval, intervals


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


def differences(column: Column, colours: Mapping[str, int], width: float) -> str | None:
    """Leading row − row in macro-F1, with 95 % intervals; None where no row has one."""
    drawn = [found for line in column.lines if (found := _interval(column, line, line.name))]
    if column.contrasts:
        stated = [(one.name, one.found) for one in column.contrasts if one.found is not None and one.found.n > 1]
        drawn = [Interval(name, 100 * f.mean, 100 * f.low, 100 * f.high, None) for name, f in stated]
        told = f"Macro-F1, {column.contrasts[0].endpoint}: differences with 95 % intervals; {column.title}"
        return _drawn(drawn, colours[column.lead], told, "Macro-F1, difference", width)
    told = f"Macro-F1 of {column.lead} minus that of each row, 95 % intervals not corrected for many; {column.title}"
    return _drawn(drawn, colours[column.lead], told, f"Macro-F1, {shorten(column.lead, 12)} − row", width)


def overview(columns: Sequence[Column], width: float) -> str | None:
    """In each column the leading row − the best other, and − FedAvg; None where that is fewer than two differences."""
    found: dict[tuple[str, float, float], Interval] = {}  # what experiments share, once
    for column in columns:
        for line in foremost(column):
            if drawn := _interval(column, line, f"{column.title}: {column.lead} − {line.name}"):
                found.setdefault((column.title, drawn.mean, drawn.low), drawn)
    told = (
        "Macro-F1 of the leading row minus that of the best other and of FedAvg, 95 % intervals not corrected for many"
    )
    return _drawn([*found.values()], 0, told, "Macro-F1, points", width) if len(found) > 1 else None


def _interval(column: Column, line: Line, name: str) -> Interval | None:
    if line.against is None or line.against.p is None:
        return None
    mean, low, high = (100 * value for value in (line.against.mean, line.against.low, line.against.high))
    paper = column.printed_against(line)
    return Interval(name, mean, low, high, None if paper is None else 100 * paper)


def _drawn(drawn: Sequence[Interval], colour: int, told: str, axis: str, width: float) -> str | None:
    key = "; grey: the paper" if any(row.beside is not None for row in drawn) else ""
    return intervals(drawn, colour, told, f"{axis}; bar: 95 %{key}", width) if drawn else None
