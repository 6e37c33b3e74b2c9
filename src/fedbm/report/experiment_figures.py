"""Draw comparisons: every seed's score, the leading row's differences, and scores over an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedbm.experiments.outcomes import Outcome
from fedbm.report.comparison import ComparedRow, ComparedGroup, key_without
from fedbm.report.figures.curves import Series, axis_plot
from fedbm.report.figures.drawing import shorten
from fedbm.report.figures.lanes import Dots, Interval, dots, intervals
from fedbm.report.model import Figure
from fedbm.report.tables import SHOWN
from fedbm.report.verdicts import main_rivals

WHOLE = 1100.0  # pixels: as wide as the page
HALF = 450.0  # two figures next to each other
OVERVIEW = (
    "The leading row minus the best other and minus FedAvg. Where a bar crosses zero, no difference is established; "
    "bars are not corrected for the number of comparisons"
)
CONTRASTS = "Differences that the experiment states, at its endpoint"
AHEAD = "Leading row minus each other row; intervals are not corrected"


def score_figures(comparison: ComparedGroup, colours: Mapping[str, int]) -> list[Figure]:
    """Return a figure per metric: every seed at the round chosen on validation, in percent."""
    return [Figure(partial(draw_scores, comparison, colours, metric, HALF)) for metric in SHOWN]


def draw_scores(comparison: ComparedGroup, colours: Mapping[str, int], metric: str, width: float) -> str:
    """Draw every seed's score as a dot, with the paper's mean ± std in grey."""
    rows = []
    for row in comparison.rows:
        if row.runs:
            found = row.published if row.comparable else None
            paper = (100 * found.mean[metric], 100 * found.std[metric]) if found else None
            values = tuple(100 * value for value in row.by_seed("best", metric).values())
            rows.append(Dots(row.name, colours[row.name], values, paper))
    words, with_paper = SHOWN[metric], any(row.paper for row in rows)
    title = f"{words} of every seed at the round chosen on validation{', and the paper’s' if with_paper else ''}"
    key = "tick: mean; grey: the paper" if with_paper else "tick: mean"
    return dots(rows, f"{title}; {comparison.title}", f"{words} of every seed, %; {key}", width)


def difference_figure(comparison: ComparedGroup, colours: Mapping[str, int]) -> list[Figure]:
    """Return leading row − row, or the stated contrasts, in macro-F1 with 95 % intervals; [] if there are none."""
    if comparison.contrasts:
        stated = [(one.name, one.found) for one in comparison.contrasts if one.found is not None and one.found.n > 1]
        rows = [Interval(name, 100 * f.mean, 100 * f.low, 100 * f.high, None) for name, f in stated]
        title = f"Macro-F1, {comparison.contrasts[0].endpoint}: differences with 95 % intervals; {comparison.title}"
        axis, caption = "Macro-F1, difference", CONTRASTS
    else:
        rows = [interval for row in comparison.rows if (interval := _interval(comparison, row, row.name))]
        title = (
            f"Macro-F1 of {comparison.lead} minus each row, 95 % intervals without correction for many; "
            f"{comparison.title}"
        )
        axis, caption = f"Macro-F1, {shorten(comparison.lead, 12)} − row", AHEAD
    return [_figure(rows, colours[comparison.lead], title, axis, HALF, caption)] if rows else []


def overview_figure(comparisons: Sequence[ComparedGroup]) -> Figure | None:
    """Return leading row − best other and − FedAvg in every comparison; None for fewer than two differences."""
    found: dict[tuple[str, float, float], Interval] = {}  # differences that experiments share, once
    for comparison in comparisons:
        for row in main_rivals(comparison):
            name = f"{comparison.title}: {comparison.lead} − {row.name}"
            if interval := _interval(comparison, row, name):
                found.setdefault((comparison.title, interval.mean, interval.low), interval)
    title = "Macro-F1 of the leading row minus the best other and FedAvg, 95 % intervals without correction for many"
    return _figure([*found.values()], 0, title, "Macro-F1, points", WHOLE, OVERVIEW) if len(found) > 1 else None


def _interval(comparison: ComparedGroup, row: ComparedRow, name: str) -> Interval | None:
    test = row.tests.get("best")
    if test is None or test.paired.p is None:
        return None
    mean, low, high = (100 * value for value in (test.paired.mean, test.paired.low, test.paired.high))
    paper = comparison.paper_difference(row)
    return Interval(name, mean, low, high, None if paper is None else 100 * paper)


def _figure(rows: Sequence[Interval], colour: int, title: str, axis: str, width: float, caption: str) -> Figure:
    key = "; grey: the paper" if any(row.paper is not None for row in rows) else ""
    return Figure(partial(intervals, rows, colour, title, f"{axis}; bar: 95 %{key}", width), caption)


def axis_figures(outcome: Outcome, found: Sequence[ComparedGroup], colours: Mapping[str, int]) -> list[Figure]:
    """Return a figure per metric over the experiment's axis, for every combination of the other axes' values."""
    axis = outcome.figure
    places = sorted(outcome.axes[axis], key=lambda place: (isinstance(place, str), place))
    sets: dict[str, list[ComparedGroup]] = {}
    for comparison in found:
        sets.setdefault(key_without(comparison.at, axis), []).append(comparison)
    figures = []
    for some in sets.values():
        name = some[0].title.removesuffix(f", {axis} {some[0].at[axis]}")
        for metric, words in SHOWN.items():
            lines = {row: _by_place(row, metric, some, axis, places) for row in outcome.rows}
            if any(len(line) > 1 for line in lines.values()):  # a single point makes no line
                drawn = [Series(row, colours[row], line) for row, line in lines.items()]
                title, label = f"{words} by {axis}; {name}", f"{words} on the test images, %"
                drawing = partial(axis_plot, drawn, [str(place) for place in places], title, label, axis)
                figures.append(Figure(drawing, f"{name}: {words}"))
    return figures


def _by_place(
    name: str, metric: str, some: Sequence[ComparedGroup], axis: str, places: Sequence[Any]
) -> dict[int, list[float]]:
    """Return the scores of one row, a list over seeds for each place on the axis."""
    return {
        places.index(comparison.at[axis]): list(row.by_seed("best", metric).values())
        for comparison in some
        for row in comparison.rows
        if row.name == name and row.runs
    }
