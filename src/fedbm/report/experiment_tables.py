"""Build tables of experiments: scores with the paper's and tests, stated differences, ladders and searches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.search import search
from fedbm.report.comparison import HEADLINE_METRIC, MOMENTS, ComparedGroup, ComparedRow
from fedbm.report.contrasts import Contrast, mean_with_interval
from fedbm.report.document import Cell, Column, Row, Table
from fedbm.report.format import NO_VALUE, format_interval, percent, points
from fedbm.report.tables import (
    BOLD,
    CLASS_METRICS,
    SHOWN,
    Colours,
    best_rows,
    class_scores,
    has_averaged_model,
    make_columns,
    mean_cell,
    score_cell,
)
from fedbm.report.verdicts import LEVEL, count_seeds_needed
from fedbm.utils.metrics import f1_error
from fedbm.utils.statistics import Paired, paired, spread, spread_or_none
from fedbm.utils.text import format_range

Notes = Mapping[tuple[str, str], int]  # (title, text) → number
LEAD = "Lead − row, macro-F1"
OTHER_SCORES = {  # (moment, metric) → title
    ("last", "f1"): "Macro-F1, last round",
    ("last_quarter", "f1"): "Macro-F1, last quarter",
    ("averaged", "accuracy"): "Accuracy, averaged",
    ("averaged", "recall"): "Mean recall of classes, averaged",
    ("averaged", "auc"): "AUC, averaged",
}
ENDPOINT_TITLES = {"averaged last": "Averaged model, last round", "chosen": "Chosen round"}
Z = 1.96  # standard errors in half of a 95 % interval
DIFFERENCE = f"lead_minus_row_{HEADLINE_METRIC}"


def results_table(comparison: ComparedGroup, name: str, colours: Colours, notes: Notes) -> Table:
    """Return the table of an experiment's cell: ours, the paper's, the difference, last rounds, tests, notes."""
    caption = "Test scores in percent at the round chosen on validation, mean ± std over n seeds."
    if comparison.lead and _has_bold(comparison):
        caption += f" {BOLD}"
        if any(row.rival for row in comparison.rows):
            caption += " The leading row is tinted, or its name is bold."
    rows = tuple(_result_rows(comparison, colours, notes))
    return Table(name, _result_columns(comparison), rows, caption, small=True)


def _has_bold(comparison: ComparedGroup) -> bool:
    """Return whether rows are compared on test images. Those of a search are not."""
    return bool(comparison.contrasts) or any(row.rival for row in comparison.rows)


def summary_table(cells: Sequence[tuple[str, ComparedGroup]], name: str, colours: Colours) -> Table:
    """Return the opening table of a data set: method, accuracy, macro-F1, the paper's, and the difference."""
    titles = {"accuracy": "Accuracy", "f1": "Macro-F1"}
    if any(row.published for _, comparison in cells for row in comparison.rows):
        titles |= {"paper_f1": "Macro-F1, paper", "f1_minus_paper": "Difference"}
    rows = [
        replace(row, block=words if len(cells) > 1 else "", lead=row.name == comparison.lead)
        for words, comparison in cells
        for row, compared in zip(_result_rows(comparison, colours, {}), comparison.rows, strict=True)
        if compared.runs
    ]
    return Table(name, make_columns(titles), tuple(rows))


def _result_rows(comparison: ComparedGroup, colours: Colours, notes: Notes) -> list[Row]:
    rows, with_bold = comparison.rows, _has_bold(comparison)
    best = {key: best_rows(rows, *key, with_bold) for key in product(MOMENTS, SHOWN)}
    tested = any(row.rival for row in rows)
    return [
        Row(
            row.name,
            _result_cells(row, {key: marks[place] for key, marks in best.items()}),
            colour=colours[row.name] if row.runs else None,
            lead=tested and row.name == comparison.lead,
            notes=tuple(sorted(notes[one] for one in row.deviations if one in notes)),
        )
        for place, row in enumerate(rows)
    ]


def _result_columns(comparison: ComparedGroup) -> tuple[Column, ...]:
    """Return the columns in which some row has a value, or will have one when its runs are finished."""
    rows = comparison.rows
    columns = [Column("n", "n")]
    for metric, title in SHOWN.items():
        if any(row.published for row in rows):
            columns += [Column(metric, "ours", title, title), Column(f"paper_{metric}", "paper", title)]
            columns.append(Column(f"{metric}_minus_paper", "Δ", title))
        else:
            columns.append(Column(metric, title))
    columns += make_columns({"last_f1": "F1, last round", "last_quarter_f1": "F1, last quarter"})
    if has_averaged_model(comparison.group):
        columns += make_columns({"averaged_accuracy": "Accuracy, averaged", "averaged_f1": "F1, averaged"})
    rivals = [row for row in rows if row.rival]
    if any(len(row.runs) + len(row.missing) > 1 for row in rivals):
        columns += [
            Column(DIFFERENCE, "points", LEAD, "lead − row"),
            *(Column("p", "p", LEAD), Column("p_holm", "Holm", LEAD, "p (Holm)"), Column("effect_size", "d", LEAD)),
        ]
    elif rivals:
        columns.append(Column(DIFFERENCE, LEAD))
    return tuple(columns)


def _result_cells(row: ComparedRow, best: Mapping[tuple[str, str], bool]) -> dict[str, Cell]:
    cells = {"n": Cell(len(row.runs), "count")}
    for moment, metric in best:
        key = metric if moment == "best" else f"{moment}_{metric}"
        cells[key] = score_cell(row.score(moment, metric), best[moment, metric])
    if not row.runs:
        cells["accuracy"] = Cell(row.state, missing=True)
    for metric in SHOWN:
        paper = row.published
        cells[f"paper_{metric}"] = Cell(paper.mean[metric], "printed", paper.std[metric]) if paper else Cell(None)
        cells[f"{metric}_minus_paper"] = Cell(row.minus_paper(metric), "points")
    test = row.tests.get("best")
    found = test.paired if test else None
    return cells | {
        DIFFERENCE: Cell(found.mean if found else None, "points"),
        "p": Cell(found.p if found else None, "probability"),
        "p_holm": Cell(test.corrected if test else None, "probability"),
        "effect_size": Cell(found.size if found else None, "effect"),
    }


def contrast_table(comparison: ComparedGroup, name: str) -> Table:
    """Return the stated differences at the endpoint and at the chosen round, with tests if the experiment has them."""
    stated = comparison.contrasts
    tested, with_chosen = stated[0].tested, any(one.chosen for one in stated)
    needed = {one.name: many for one in stated if (many := _seeds_needed(one))}
    title, chosen = ENDPOINT_TITLES[stated[0].endpoint], ENDPOINT_TITLES["chosen"]
    columns = [Column("n", "n"), *_interval_columns("endpoint", title)]
    if tested:
        columns += [
            *(Column("p", "p", title), Column("holm", "Holm", title, "p (Holm)")),
            *(Column("sign_flip", "sign-flip", title, "p (sign-flip)"), Column("size", "d", title)),
        ]
    columns += _interval_columns("chosen", chosen) if with_chosen else ()
    columns += [Column("seeds", "Seeds needed")] if needed else []
    lines = []
    for one in stated:
        found = one.found
        cells = {
            "n": Cell(found.n if found else 0, "count"),
            "p": Cell(found.p if found else None, "probability"),
            "holm": Cell(one.corrected, "probability"),
            "sign_flip": Cell(one.sign_flip, "probability"),
            "size": Cell(found.size if found else None, "effect"),
            "seeds": Cell(needed.get(one.name)),
        }
        for key, difference in (("endpoint", found), ("chosen", one.chosen)):
            cells[key] = Cell(difference.mean if difference else None, "points")
            cells[f"{key}_interval"] = Cell(format_interval(difference, points) if difference else NO_VALUE)
        lines.append(Row(one.name, cells))
    if tested:
        caption = (
            "Differences in macro-F1. p: two-sided paired t-test; Holm: this p after correction for all stated tests, "
            "which decides; sign-flip: p of the exact test, at least 2/2ⁿ; d: mean divided by standard deviation."
        )
    else:
        caption = "Differences in macro-F1, estimated and not tested."
    if needed:
        caption += " Seeds needed: how many would show a difference of this size with 80 % power."
    return Table(name, tuple(columns), tuple(lines), caption, head="Difference", small=True)


def other_scores_table(comparison: ComparedGroup, name: str) -> Table:
    """Return the stated differences by other scores than the planned one; they are exploratory."""
    by_name = {row.name: row for row in comparison.rows}
    lines = []
    for one in comparison.contrasts:
        rows = (by_name[one.first], by_name[one.second])
        cells = {"images": Cell(_difference_words(_over_images(one.found, rows, comparison.moment)))}
        for moment, metric in OTHER_SCORES:
            found = _at_all_seeds(one, *(row.by_seed(moment, metric) for row in rows))
            cells[f"{moment} {metric}"] = Cell(_difference_words(found))
        lines.append(Row(one.name, cells))
    titles = {f"{moment} {metric}": title for (moment, metric), title in OTHER_SCORES.items()}
    columns = make_columns({"images": "Planned score, over seeds and images", **titles})
    return Table(name, columns, tuple(lines), head="Difference", small=True)


def _at_all_seeds(contrast: Contrast, x: Mapping[int, float], y: Mapping[int, float]) -> Paired | None:
    """Return x − y; None unless every seed of the stated difference has both, because runs that diverged have none."""
    seeds = contrast.by_seed.keys()
    return paired({seed: x[seed] for seed in seeds}, y) if seeds <= x.keys() & y.keys() else None


def _over_images(found: Paired | None, rows: Sequence[ComparedRow], moment: str) -> Paired | None:
    """Return a difference with an interval that also covers the choice of test images.

    It is cautious: all seeds share the error of the images, and the errors of the two rows are independent.
    """
    if found is None:
        return None
    matrices = [[getattr(run.details.confusion, moment, None) for run in row.runs if run.details] for row in rows]
    if not all(matrices) or any(matrix is None for some in matrices for matrix in some):
        return None
    errors = [np.mean([f1_error(np.array(matrix)) for matrix in some]) for some in matrices]
    half = math.hypot(found.high - found.mean, *(Z * float(error) for error in errors))
    return replace(found, low=found.mean - half, high=found.mean + half)


def rounds_table(comparison: ComparedGroup, name: str) -> Table:
    """Return the stated differences in the averaged model's macro-F1 after each quarter of the rounds."""
    by_name = {row.name: row for row in comparison.rows}
    planned = max(run.planned for run in comparison.group.runs)
    rounds = sorted({-(-planned * quarter // 4) for quarter in range(1, 5)})
    lines = []
    for one in comparison.contrasts:
        cells = {}
        for number in rounds:
            found = _at_all_seeds(one, *(_averaged_at(by_name[row], number) for row in (one.first, one.second)))
            cells[str(number)] = Cell(_difference_words(found))
        lines.append(Row(one.name, cells))
    columns = tuple(Column(str(number), f"Round {number}") for number in rounds)
    return Table(name, columns, tuple(lines), head="Difference", small=True)


def _averaged_at(row: ComparedRow, number: int) -> dict[int, float]:
    """Return the averaged model's macro-F1 after this round, by seed."""
    return {
        run.seed: score
        for run in row.runs
        for one in run.rounds
        if one.round == number and one.averaged and one.averaged.test
        if (score := one.averaged.test[HEADLINE_METRIC]) is not None
    }


def endpoint_class_table(comparison: ComparedGroup, name: str) -> Table:
    """Return recall and F1 of every class at the stated endpoint, a column per row of the comparison."""
    scores = {
        row.name: [] if row.missing else [class_scores(run, comparison.moment) for run in row.runs]
        for row in comparison.rows
    }
    metrics = {key: CLASS_METRICS[key] for key in ("recall", "f1")}
    totals = {one: found[one]["n"] for runs in scores.values() for found in runs for one in found}
    lines = []
    for class_name, total in totals.items():
        cells = {"n": Cell(total, "count")}
        for row, runs in scores.items():
            for metric in metrics:
                values = [one.get(class_name, {}).get(metric) for one in runs]  # a run may have no matrix
                cells[f"{row} {metric}"] = score_cell(spread_or_none(values))
        lines.append(Row(class_name, cells))
    columns = [Column(f"{row} {m}", row, title, f"{title}, {row}") for m, title in metrics.items() for row in scores]
    return Table(name, (Column("n", "n"), *columns), tuple(lines), head="Class", small=True)


def _difference_words(found: Paired | None) -> str | None:
    return f"{points(found.mean)} ({format_interval(found, points)})" if found else None


def _seeds_needed(contrast: Contrast) -> str:
    """Return how many seeds would show the difference; "" if its test or its interval already shows it."""
    found, corrected = contrast.found, contrast.corrected
    if found is None or (found.low > 0 if not contrast.tested else corrected is not None and corrected < LEVEL):
        return ""
    return count_seeds_needed(found, contrast.tests)


def _interval_columns(key: str, title: str) -> tuple[Column, Column]:
    return Column(key, "points", title, f"{title}, points"), Column(f"{key}_interval", "95 %", title, "95 % interval")


def ladder_table(comparison: ComparedGroup, name: str, colours: Colours) -> Table:
    """Return what each row of a ladder has at the stated endpoint, its share of the lead's gain, and its time."""
    base, lead = comparison.baseline, comparison.lead
    scores = {row.name: row.at_endpoint(comparison.moment) for row in comparison.rows}
    lines, seeds = [], []
    for row in comparison.rows:
        own = scores[row.name]
        found = mean_with_interval(own)
        if found is None:
            continue
        difference, share = None, None
        if row is not base:
            difference = paired(own, scores[base.name])
            shared = sorted(own.keys() & scores[base.name].keys() & scores[lead].keys())
            gain, whole = (sum(some[seed] - scores[base.name][seed] for seed in shared) for some in (own, scores[lead]))
            if round(whole, 9) > 0:
                share = gain / whole
                seeds.append(len(shared))
        cells = {
            "n": Cell(found.n, "count"),
            "f1": score_cell(spread(list(own.values()))),
            "interval": Cell(format_interval(found, percent)),
            "minus": Cell(difference.mean if difference else None, "points"),
            "minus_interval": Cell(format_interval(difference, points) if difference else NO_VALUE),
            "share": Cell(share, "percent"),
            "seconds": mean_cell([run.summary.seconds for run in row.runs if run.summary], "seconds"),
        }
        lines.append(Row(row.name, cells, colour=colours[row.name], lead=row.name == lead))
    shared_by = f", n = {format_range(min(seeds), max(seeds))}" if seeds else ""
    columns = (
        *make_columns({"n": "n", "f1": "Macro-F1", "interval": "95 % interval"}),
        *_interval_columns("minus", f"Minus {base.name}"),
        *make_columns({"share": f"% of the lead’s{shared_by}", "seconds": "Wall time of a run"}),
    )
    caption = "Macro-F1 in percent at the endpoint of the plan, mean ± std over n seeds, in the order of the plan."
    caption += f" % of the lead’s: gain over {base.name} as a share of {lead}’s, over the seeds that all three have."
    return Table(name, columns, tuple(lines), caption, head="Row", small=True)


def pooled_table(found: Mapping[str, tuple[int, Paired]], name: str) -> Table:
    """Return differences that are pooled over cells."""
    rows = [
        Row(
            words,
            {
                "cells": Cell(cells, "count"),
                "clusters": Cell(pooled.n, "count"),
                "difference": Cell(pooled.mean, "points"),
                "interval": Cell(format_interval(pooled, points)),
            },
        )
        for words, (cells, pooled) in found.items()
    ]
    titles = {"cells": "Cells", "clusters": "Clusters", "difference": "Mean, points", "interval": "95 % interval"}
    return Table(name, make_columns(titles), tuple(rows), head="Difference in macro-F1", small=True)


def search_table(outcome: Outcome, name: str) -> Table:
    """Return the combinations that were tried, and which one validation chose."""
    titles = {**{axis: axis for axis in outcome.axes}, "n": "n", "validation": "validation accuracy + macro-F1"}
    columns = (*make_columns(titles), Column("chosen", "", text=True))
    rows = []
    for one in search(outcome):
        score = Cell(one.score.mean, "score", one.score.std) if one.score else Cell("not complete", missing=True)
        cells = {
            "n": Cell(one.score.n if one.score else 0, "count"),
            "validation": score,
            "chosen": Cell("chosen" if one.chosen else ""),
        }
        rows.append(Row(one.row, {axis: Cell(str(one.at[axis])) for axis in outcome.axes} | cells))
    return Table(name, columns, tuple(rows), head="Row", small=True)
