"""Draw comparisons: every seed's score, the leading row's differences, and scores over an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from fedbm.experiments.outcomes import Outcome
from fedbm.report.comparison import data_title
from fedbm.report.contrasts import mean_with_interval
from fedbm.report.document import Figure
from fedbm.report.experiment_tables import ENDPOINT_TITLES
from fedbm.report.figures.curves import axis_plot
from fedbm.report.figures.dot_plot import DotRow, dot_plot
from fedbm.report.figures.labels import shorten
from fedbm.report.figures.svg import WIDE
from fedbm.report.group import Group, GroupRow
from fedbm.report.tables import SHOWN
from fedbm.report.verdicts import main_rivals
from fedbm.utils.statistics import Paired

WHOLE = 1100.0  # pixels: as wide as the page
HALF = 450.0  # two figures next to each other
OVERVIEW = (
    "The leading row minus the best other and minus FedAvg. Where a bar crosses zero, no difference is established; "
    "bars are not corrected for the number of comparisons"
)
LADDER = "Every row at the endpoint of the plan. Dashed: the means of the baseline and of the leading row"
AHEAD = "Leading row minus each other row; intervals are not corrected"


def cell_figures(comparison: Group, colours: Mapping[str, int]) -> list[Figure]:
    """Return a figure of every seed's score per metric, and one of the leading row's differences if there are any."""
    figures, lead = [seeds_figure(comparison, colours, metric, HALF) for metric in SHOWN], comparison.lead
    rows = [dots for row in comparison.rows if (dots := _interval(comparison, row, row.name, colours[lead]))]
    title = f"Macro-F1 of {lead} minus each row, 95 % intervals without correction for many; {comparison.title}"
    axis = f"Macro-F1, {shorten(lead, 12)} − row"
    return [*figures, _figure(rows, title, axis, HALF, AHEAD)] if rows else figures


def seeds_figure(group: Group, colours: Mapping[str, int], metric: str, width: float = WIDE) -> Figure:
    """Draw the score of every seed at the round chosen on validation, next to the paper's."""
    rows = []
    for row in group.finished.rows:
        paper = (100 * row.published.mean[metric], 100 * row.published.std[metric]) if row.published else None
        rows.append(DotRow(row.name, colours[row.name], _percents(row.by_seed("best", metric)), paper=paper))
    with_paper = any(row.paper for row in rows)
    title = f"{SHOWN[metric]} of every seed at the round chosen on validation"
    title += f"{', and the paper’s' if with_paper else ''}; {group.title}"
    axis = f"{SHOWN[metric]} of every seed, %; tick: mean{'; grey: the paper' if with_paper else ''}"
    return Figure(partial(dot_plot, rows, title, axis, width))


def contrast_figure(found: Sequence[Group]) -> list[Figure]:
    """Return the stated differences of all cells: a dot per seed, the mean and its interval; [] if there are none."""
    data = [comparison.data for comparison in found]
    rows, endpoint = [], ""
    for comparison in found:
        name = data_title(comparison.data) if data.count(comparison.data) == 1 else comparison.title
        for one in comparison.contrasts:
            if one.found is not None:
                label = f"{name}: {one.name}" if len(found) > 1 else one.name
                rows.append(DotRow(label, 0, _percents(one.by_seed), _in_points(one.found)))
                endpoint = ENDPOINT_TITLES[one.endpoint].lower()
    title = "Macro-F1, differences within each seed, with mean and 95 % interval"
    axis = f"Difference in macro-F1 ({endpoint}), points; small dot: a seed; bar: mean, 95 %"
    return [Figure(partial(dot_plot, rows, title, axis, zero=True))] if rows else []


def ladder_figure(comparison: Group, colours: Mapping[str, int]) -> Figure | None:
    """Draw macro-F1 at the endpoint in the order of the file, with guides at the baseline and the leading row.

    Returns None if no finished run has a score at the endpoint, as if all ran without `server_average`.
    """
    rows, means = [], {}
    for row in comparison.rows:
        scores = row.at_endpoint(comparison.moment)
        if found := mean_with_interval(scores):
            means[row.name] = 100 * found.mean
            rows.append(DotRow(row.name, colours[row.name], _percents(scores), _in_points(found)))
    if not rows:
        return None
    guides = [means[name] for name in (comparison.baseline.name, comparison.lead) if name in means]
    title = f"Macro-F1 of every row, with mean and 95 % interval; {comparison.title}"
    axis = "Macro-F1, %; small dot: a seed; bar: mean, 95 %"
    return Figure(partial(dot_plot, rows, title, axis, guides=guides), LADDER)


def overview_figure(comparisons: Sequence[Group]) -> Figure | None:
    """Return leading row − best other and − FedAvg in every comparison; None for fewer than two differences."""
    found: dict[Any, DotRow] = {}  # differences that experiments share, once
    for comparison in comparisons:
        for row in main_rivals(comparison):
            name = f"{comparison.title}: {comparison.lead} − {row.name}"
            if dots := _interval(comparison, row, name, 0):
                found.setdefault((comparison.title, dots.interval), dots)
    title = "Macro-F1 of the leading row minus the best other and FedAvg, 95 % intervals without correction for many"
    return _figure([*found.values()], title, "Macro-F1, points", WHOLE, OVERVIEW) if len(found) > 1 else None


def _interval(comparison: Group, row: GroupRow, name: str, colour: int) -> DotRow | None:
    test = row.tests.get("best")
    if test is None or test.paired.p is None:
        return None
    paper = comparison.paper_difference(row)
    return DotRow(name, colour, interval=_in_points(test.paired), paper=None if paper is None else (100 * paper, 0.0))


def _percents(by_seed: Mapping[int, float]) -> tuple[float, ...]:
    return tuple(100 * value for value in by_seed.values())


def _in_points(found: Paired) -> tuple[float, float, float]:
    return 100 * found.mean, 100 * found.low, 100 * found.high


def _figure(rows: Sequence[DotRow], title: str, axis: str, width: float, caption: str) -> Figure:
    key = "; grey: the paper" if any(row.paper for row in rows) else ""
    return Figure(partial(dot_plot, rows, title, f"{axis}; bar: 95 %{key}", width, zero=True), caption)


def axis_figures(outcome: Outcome, found: Sequence[Group], colours: Mapping[str, int]) -> list[Figure]:
    """Return a figure per metric over the experiment's axis, for every combination of the other axes' values."""
    axis = outcome.figure
    places = sorted(outcome.axes[axis], key=lambda place: (isinstance(place, str), place))
    sets: dict[str, list[Group]] = {}
    for comparison in found:
        others = {key: value for key, value in comparison.at.items() if key != axis}
        sets.setdefault(repr(others), []).append(comparison)
    figures = []
    for cells, (metric, words) in product(sets.values(), SHOWN.items()):
        name = cells[0].title.removesuffix(f", {axis} {cells[0].at[axis]}")
        lines: dict[str, dict[int, list[float]]] = {row: {} for row in outcome.rows}  # row → place → scores
        for cell in cells:
            for row in cell.finished.rows:
                lines[row.name][places.index(cell.at[axis])] = list(row.by_seed("best", metric).values())
        if any(len(line) > 1 for line in lines.values()):  # a single point makes no line
            title, label = f"{words} by {axis}; {name}", f"{words} on the test images, %"
            drawing = partial(axis_plot, lines, colours, [str(place) for place in places], title, label, axis)
            figures.append(Figure(drawing, f"{name}: {words}"))
    return figures
