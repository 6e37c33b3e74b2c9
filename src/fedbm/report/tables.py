"""Comparisons and groups of runs → tables of typed cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.search import search
from fedbm.report.comparison import HEADLINE_METRIC, MOMENTS, ComparedRow, Comparison, Test
from fedbm.report.format import percent
from fedbm.report.grouping import Group, MethodRuns
from fedbm.report.model import Cell, Column, Row, Table
from fedbm.utils.statistics import Spread

METRICS = {"accuracy": "Accuracy", "f1": "Macro-F1", "auc": "AUC", "recall": "Recall", "precision": "Precision"}
SHOWN = {metric: METRICS[metric] for metric in ("accuracy", "f1")}  # in tables of experiments
BLOCKS = {
    "best": "At the round chosen on validation",
    "last": "At the last round",
    "averaged": "Averaged model, after the last round",
}
LEAD = "Lead − row, macro-F1"
Colours = Mapping[str, int]
NONE = Cell(None, "text")


def score_cell(score: Spread | None, best: bool = False) -> Cell:
    return Cell(score.mean, "percent", score.std, best=best) if score else Cell(None, "percent")


def best_rows(rows: Sequence[MethodRuns | None], moment: str, metric: str) -> list[bool]:
    """Return which rows print the highest mean; none if only one row has a score.

    Only rows with the most seeds take part, because seeds differ more than methods; central training does not.
    """
    most = max((len(row.runs) for row in rows if row and not row.central), default=0)
    scores = [row.score(moment, metric) if row and not row.central and len(row.runs) == most else None for row in rows]
    means = [score.mean for score in scores if score]
    top = percent(max(means)) if len(means) > 1 else None
    return [score is not None and percent(score.mean) == top for score in scores]


def averaged(group: Group) -> bool:
    """Return whether any run of the group has an averaged model."""
    return any(run.scores("averaged") for row in group.rows for run in row.runs)


# --- one comparison -------------------------------------------------------------------------------------------------


def results_table(
    comparison: Comparison, name: str, colours: Colours, notes: Mapping[tuple[str, str], int], folded: str = ""
) -> Table:
    """Return the table of an experiment's cell: ours, the paper's, the difference, last rounds, tests, notes."""
    columns = _result_columns(comparison)
    runs = [row.runs for row in comparison.rows]
    best = {
        _score_key(moment, metric): best_rows(runs, moment, metric)
        for moment in MOMENTS
        for metric in SHOWN
        if _score_key(moment, metric) in {column.key for column in columns}
    }
    rows = tuple(
        Row(
            row.name,
            _result_cells(row, {key: marks[place] for key, marks in best.items()}),
            colour=colours[row.name] if row.runs else None,
            lead=row.name == comparison.lead and any(other.rival for other in comparison.rows),
            notes=tuple(sorted(notes[one] for one in row.deviations)),
        )
        for place, row in enumerate(comparison.rows)
    )
    caption = "Test scores in percent at the round chosen on validation, mean ± std over n seeds."
    if comparison.lead and any(row.rival for row in comparison.rows):
        caption += " Bold: highest mean among rows with the most seeds; tinted: the leading row."
    return Table(name, columns, rows, caption, small=True, folded=folded)


def _score_key(moment: str, metric: str) -> str:
    return metric if moment == "best" else f"{moment}_{metric}"


def _result_columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the columns in which some row has a value, or will have one when its runs are finished."""
    rows = comparison.rows
    rivals = [row for row in rows if row.rival]
    columns = [Column("n", "n")]
    for metric, title in SHOWN.items():
        if any(row.published for row in rows):
            columns += [Column(metric, "ours", title, title), Column(f"paper_{metric}", "paper", title)]
            if any(row.published and row.comparable for row in rows):
                columns.append(Column(f"{metric}_minus_paper", "Δ", title))
        else:
            columns.append(Column(metric, title))
    columns += [Column("last_f1", "F1, last round"), Column("last_quarter_f1", "F1, last quarter")]
    if averaged(comparison.group):
        columns += [Column("averaged_accuracy", "Accuracy, averaged"), Column("averaged_f1", "F1, averaged")]
    if any(row.planned > 1 for row in rivals):
        columns += [
            Column(f"lead_minus_row_{HEADLINE_METRIC}", "points", LEAD, "lead − row"),
            *(Column("p", "p", LEAD), Column("p_holm", "Holm", LEAD, "p (Holm)"), Column("effect_size", "d", LEAD)),
        ]
    elif rivals:
        columns.append(Column(f"lead_minus_row_{HEADLINE_METRIC}", LEAD))
    return tuple(columns)


def _result_cells(row: ComparedRow, best: Mapping[str, bool]) -> dict[str, Cell]:
    cells = {"n": Cell(row.n, "count")}
    for moment in MOMENTS:
        for metric in SHOWN:
            key = _score_key(moment, metric)
            score = score_cell(row.score(moment, metric), best.get(key, False))
            cells[key] = score if row.runs else Cell(row.state, missing=True)
    for metric in SHOWN:
        paper = row.published
        cells[f"paper_{metric}"] = Cell(paper.mean[metric], "printed", paper.std[metric]) if paper else NONE
        cells[f"{metric}_minus_paper"] = Cell(row.minus_paper(metric), "points")
    return cells | test_cells(row.tests.get("best"))


def test_cells(test: Test | None) -> dict[str, Cell]:
    found = test.paired if test else None
    return {
        f"lead_minus_row_{HEADLINE_METRIC}": Cell(found.mean if found else None, "points"),
        "p": Cell(found.p if found else None, "probability"),
        "p_holm": Cell(test.corrected if test else None, "probability"),
        "effect_size": Cell(found.size if found else None, "effect"),
    }


def summary_table(
    cells: Sequence[tuple[str, Comparison]], name: str, caption: str, colours: Colours, paper: bool
) -> Table:
    """Return the opening table of a data set: method, accuracy, macro-F1, the paper's, and the difference."""
    columns = [Column("accuracy", "Accuracy"), Column("f1", "Macro-F1")]
    if paper:
        columns += [Column("paper_f1", "Macro-F1, paper"), Column("f1_minus_paper", "Difference")]
    rows = []
    for words, comparison in cells:
        runs = [row.runs for row in comparison.rows]
        best = {metric: best_rows(runs, "best", metric) for metric in SHOWN}
        rows += [
            Row(
                row.name,
                _result_cells(row, {metric: marks[place] for metric, marks in best.items()}),
                words if len(cells) > 1 else "",
                colours[row.name],
                row.name == comparison.lead,
            )
            for place, row in enumerate(comparison.rows)
            if row.runs is not None
        ]
    return Table(name, tuple(columns), tuple(rows), caption)


def search_table(outcome: Outcome, name: str) -> Table:
    """Return what was tried and what validation chose."""
    columns = (
        *(Column(axis, axis) for axis in outcome.axes),
        *(Column("n", "n"), Column("validation", "validation accuracy + macro-F1"), Column("chosen", "", text=True)),
    )
    rows = []
    for one in search(outcome):
        at = {**one.at, **one.tried}
        score = Cell(one.score.mean, "score", one.score.std) if one.score else Cell("not complete", missing=True)
        cells = {"n": Cell(one.score.n if one.score else 0, "count"), "validation": score, "chosen": Cell(one.words)}
        rows.append(Row(one.row, {axis: Cell(str(at[axis])) for axis in outcome.axes} | cells))
    return Table(name, columns, tuple(rows), head="Row", small=True)
