"""outcomes → one page, self-contained and offline: every table with the paper's numbers, tests, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbm.experiments.analysis import Column, Line, columns, same_but
from fedbm.experiments.outcomes import Outcome, title_of
from fedbm.experiments.pictures import differences, overview, scores
from fedbm.experiments.remaining import count_remaining, list_unrecorded, trials_of
from fedbm.experiments.search import search
from fedbm.experiments.tables import MOMENTS, SHOWN, cells_of, fillable, numbered, signs
from fedbm.experiments.wording import verdicts
from fedbm.report.cost import cost_lines
from fedbm.report.figures.curves import NARROW, WIDE
from fedbm.report.figures.line_plot import Course, along
from fedbm.report.figures.palette import numbers_of
from fedbm.report.render.html import environment, group_view, provenance
from fedbm.report.sections import Picture, training
from fedbm.report.tables import METRICS
from fedbm.report.tables import lines as table_lines
from fedbm.runs.reader import RunView
from fedbm.utils.io import write_text
from fedbm.version import __version__

WHOLE = 1100.0  # pixels: as wide as the page
HALF = 450.0  # two pictures side by side
OVERVIEW = (
    "The leading row minus the best other and minus FedAvg. Where a bar crosses zero, nothing is shown to differ; "
    "bars are not corrected for many"
)
AHEAD = "What the leading row is ahead by; intervals are not corrected"


def write_outcomes(outcomes: Sequence[Outcome], out: Path, title: str = "", whole: bool = False) -> Path:
    """Write the page to *out* (in a folder: report.html) and return where it is.

    *whole*: these are all records there are, so that the paper's other experiments are listed as not run.
    """
    found = [(outcome, columns(outcome)) for outcome in outcomes]
    groups = [column.group for _, some in found for column in some]
    runs: dict[str, RunView] = {}
    for run in (run for group in groups for run in group.runs):
        runs.setdefault(run.id, run)  # one that experiments share has the name that the first gives it
    text = (
        environment()
        .get_template("experiments.html.j2")
        .render(
            title=title or title_of(outcomes),
            glance=_glance(found),
            outcomes=[_view(outcome, some, f"e{number}") for number, (outcome, some) in enumerate(found, 1)],
            unrecorded=list_unrecorded(outcomes) if whole else [],
            runs=[provenance(run) for run in runs.values()],
            shown=SHOWN,
            filled={key for _, some in found for column in some for key in fillable(column)},
            metrics=METRICS,
            version=__version__,
        )
    )
    path = out / "report.html" if out.is_dir() else out
    write_text(path, text)
    return path


def _glance(found: Sequence[tuple[Outcome, Sequence[Column]]]) -> Picture | None:
    """Of all tables; a figure or a search has pictures of its own."""
    of_tables = [column for outcome, some in found if _detail(outcome) != "none" for column in some]
    drawn = overview(of_tables, WHOLE)
    return Picture(drawn, OVERVIEW) if drawn else None


def _view(outcome: Outcome, found: Sequence[Column], ident: str) -> dict[str, Any]:
    colours = numbers_of(outcome.rows)
    numbers = numbered(found)
    done = [column for column in found if column.lead]
    runs = _run_names(outcome)
    return {
        "id": ident,
        "outcome": outcome,
        "columns": [
            _column(column, f"{ident}c{n}", colours, numbers, _detail(outcome), _shown_elsewhere(column, found))
            for n, column in enumerate(found, 1)
            if not column.empty
        ],
        "empty": [column.title for column in found if column.empty],
        "unlike": [(number, one) for one, number in numbers.items()],
        "missing": _missing(found, runs),
        "remaining": count_remaining(outcome),
        "pictures": _pictures(outcome, found, colours) if outcome.figure and done else [],
        "search": search(outcome) if outcome.search else [],
        "finished": len({runs[result.key] for result in outcome.results if result.run is not None}),
        "planned": len(set(runs.values())),
    }


def _run_names(outcome: Outcome) -> dict[Any, str]:
    """A name for the run of every result: cells may share one, such as Central's, which is to be counted once.

    Equal settings are one run; of an experiment whose settings are not known here, equal ids are.
    """
    names = {r.key: (r.run.id if r.run else r.id) or repr(r.key) for r in outcome.results}
    return names | {trial.key: repr(trial.config) for trial in trials_of(outcome) if trial.key in names}


def _column(
    column: Column, ident: str, colours: Mapping[str, int], numbers: Mapping[Any, int], detail: str, again: bool
) -> dict[str, Any]:
    """*again*: another cell shows its runs, so that here there is nothing beside the table."""
    group = column.group
    own = bool(column.lead) and not again
    return {
        "id": ident,
        "title": column.title,
        "verdicts": verdicts(column) if column.lead else [],
        "lines": [_line(line, column, numbers) for line in column.lines],
        "fills": fillable(column),
        "lead": column.lead,
        "colours": {row.name: colours[row.name] for row in group.rows},
        "scores": _scores(column, colours) if column.lead and detail != "none" else [],
        "group": group_view(group, f"{ident}g", colours) if own and detail == "all" else None,
        "training": training(group, colours) if own and detail == "curves" else None,
        "cost": cost_lines(group) if own else [],
    }


def _shown_elsewhere(column: Column, found: Sequence[Column]) -> bool:
    """Whether it has runs of central training alone, and a cell with more runs, or one before it, has them too."""
    if any(row.method != "central" for row in column.group.rows):
        return False
    own, *others = ({run.id for run in one.group.runs} for one in (column, *found))
    return any(own < other for other in others) or own in others[: found.index(column)]


def _scores(column: Column, colours: Mapping[str, int]) -> list[Picture]:
    ahead = differences(column, colours, HALF)
    of_seeds = [Picture(scores(column, colours, metric, HALF)) for metric in SHOWN]
    return [*of_seeds, *([Picture(ahead, AHEAD)] if ahead else [])]


def _detail(outcome: Outcome) -> str:
    """How much a cell has beside its table: in a comparison all, in an ablation curves; bytes and time in each."""
    if outcome.figure or outcome.search:
        return "none"
    return "all" if outcome.paper in ("", "comparison") else "curves"


def _line(line: Line, column: Column, numbers: Mapping[Any, int]) -> dict[str, Any]:
    moments = (*MOMENTS, "averaged")
    best, *others = (_tops(column, line.name, moment) for moment in moments)
    return {
        "name": line.name,
        "n": len(line.row.runs) if line.row else 0,
        "lead": line.name == column.lead,
        "cells": cells_of(line) | {"unlike": signs(line, numbers, ", ")},
        "bold": {*best, *(f"{at}_{metric}" for at, tops in zip(moments[1:], others, strict=True) for metric in tops)},
    }


def _tops(column: Column, name: str, moment: str) -> set[str]:
    """The metrics in which this row has the highest mean."""
    shown = next((one for one in table_lines(column.group, moment) if one.row.name == name), None)
    return {metric for metric, cell in zip(METRICS, shown.cells, strict=True) if cell.best} if shown else set()


def _missing(found: Sequence[Column], runs: Mapping[Any, str]) -> list[dict[str, Any]]:
    """Each reason once, with how many runs it keeps back, and which; a run of two cells once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    seen: set[str] = set()
    for column in found:
        for line in column.lines:
            for result in line.missing:
                if runs[result.key] in seen:
                    continue
                seen.add(runs[result.key])
                words = f"{line.name}, {column.title}, seed {result.seed}"
                reasons.setdefault((result.state, result.why), []).append(words)
    return [{"state": state, "why": why, "runs": runs} for (state, why), runs in reasons.items()]


def _pictures(outcome: Outcome, found: Sequence[Column], colours: Mapping[str, int]) -> list[Picture]:
    """For every other axis's values one picture per metric, along the figure's axis in ascending order."""
    axis = outcome.figure
    places = sorted(outcome.axes[axis], key=lambda place: (isinstance(place, str), place))
    sets: dict[str, list[Column]] = {}
    for column in found:
        sets.setdefault(same_but(column.at, axis), []).append(column)
    pictures = []
    for some in sets.values():
        name = some[0].title.removesuffix(f", {axis} {some[0].at[axis]}")
        for metric, words in SHOWN.items():
            drawn = [_course(row, metric, some, axis, places, colours) for row in outcome.rows]
            if any(len(course.values) > 1 for course in drawn):  # a point by itself has no course
                title = f"{words} by {axis}; {name}"
                wide, narrow = (
                    along(drawn, [str(place) for place in places], title, f"{words} on the test images, %", axis, width)
                    for width in (WIDE, NARROW)
                )
                pictures.append(Picture(wide, f"{name}: {words}", narrow))
    return pictures


def _course(
    row: str, metric: str, some: Sequence[Column], axis: str, places: Sequence[Any], colours: Mapping[str, int]
) -> Course:
    values: dict[int, list[float]] = {}
    for column in some:
        line = next(line for line in column.lines if line.name == row)
        if line.row is not None:
            values[places.index(column.at[axis])] = list(line.row.by_seed("best", metric).values())
    return Course(row, colours[row], values)
