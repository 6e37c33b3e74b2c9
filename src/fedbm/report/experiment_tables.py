"""Build tables of experiments: scores with the paper's and tests, stated differences, ladders and searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.search import search
from fedbm.report.contrasts import mean_with_interval
from fedbm.report.document import Cell, Column, Row, Table
from fedbm.report.format import format_interval, percent, points
from fedbm.report.group import HEADLINE_METRIC, MOMENTS, Contrast, Group, GroupRow
from fedbm.report.tables import (
    BOLD,
    SHOWN,
    Colours,
    best_rows,
    make_columns,
    mean_cell,
    score_cell,
)
from fedbm.report.verdicts import count_seeds_needed
from fedbm.utils.metrics import f1_error
from fedbm.utils.statistics import Paired, paired, spread
from fedbm.utils.text import format_range

Notes = Mapping[tuple[str, str], int]  # (title, text) → number
Difference = Callable[[Contrast, GroupRow, GroupRow], Paired | None]
LEAD = "Lead − row, macro-F1"
OTHER_SCORES = {  # (moment, metric) → title
    ("last", "f1"): "Macro-F1, last round",
    ("last_quarter", "f1"): "Macro-F1, last quarter",
    ("averaged", "accuracy"): "Accuracy, averaged",
    ("averaged", "recall"): "Mean recall of classes, averaged",
    ("averaged", "auc"): "AUC, averaged",
}
ENDPOINT_TITLES = {"averaged last": "Averaged model, last round", "chosen": "Chosen round"}
TESTED = (
    "Differences in macro-F1. p: two-sided paired t-test; Holm: this p after correction for all stated tests, which "
    "decides; sign-flip: p of the exact test, at least 2/2ⁿ; d: mean divided by standard deviation."
)
ESTIMATED = "Differences in macro-F1, estimated and not tested."
SEEDS_NEEDED = " Seeds needed: how many would show a difference of this size with 80 % power."
Z = 1.96  # standard errors in half of a 95 % interval


def _table(name: str, columns: Iterable[Column], rows: Sequence[Row], caption: str = "", head: str = "Method") -> Table:
    """Return a table without the columns in which no row has a value."""
    filled = {key for row in rows for key, cell in row.cells.items() if cell.value is not None}
    return Table(name, tuple(c for c in columns if c.key in filled), tuple(rows), caption, head=head, small=True)


def _difference_columns(key: str, title: str) -> tuple[Column, Column]:
    return Column(key, "points", title, f"{title}, points"), Column(f"{key}_interval", "95 %", title, "95 % interval")


def _difference_cells(key: str, found: Paired | None) -> dict[str, Cell]:
    """Return the mean difference in points and its interval."""
    interval = format_interval(found, points) if found else None
    return {key: Cell(found.mean if found else None, "points"), f"{key}_interval": Cell(interval)}


def _test_columns(title: str) -> tuple[Column, ...]:
    return (
        *(Column("p", "p", title), Column("p_holm", "Holm", title, "p (Holm)")),
        *(Column("sign_flip", "sign-flip", title, "p (sign-flip)"), Column("effect_size", "d", title)),
    )


def _test_cells(one: Contrast | None) -> dict[str, Cell]:
    found = one.found if one and one.tests else None
    return {
        "p": Cell(found.p if found else None, "probability"),
        "p_holm": Cell(one.corrected if one else None, "probability"),
        "sign_flip": Cell(one.sign_flip if one else None, "probability"),
        "effect_size": Cell(found.size if found else None, "effect"),
    }


# --- rows against the leading row -----------------------------------------------------------------------------------


def results_table(comparison: Group, name: str, colours: Colours, notes: Notes) -> Table:
    """Return the table of an experiment's cell: ours, the paper's, the difference, last rounds, tests, notes."""
    caption = "Test scores in percent at the round chosen on validation, mean ± std over n seeds."
    if comparison.lead and _has_bold(comparison):
        caption += f" {BOLD}"
        if any(row.rival for row in comparison.rows):
            caption += " The leading row is tinted, or its name is bold."
    columns = [Column("n", "n")]
    for metric, title in SHOWN.items():
        published = any(row.published for row in comparison.rows)
        columns.append(Column(metric, "ours", title, title) if published else Column(metric, title))
        columns += [Column(f"paper_{metric}", "paper", title), Column(f"{metric}_minus_paper", "Δ", title)]
    columns += make_columns({"last_f1": "F1, last round", "last_quarter_f1": "F1, last quarter"})
    columns += make_columns({"averaged_accuracy": "Accuracy, averaged", "averaged_f1": "F1, averaged"})
    columns += [Column("lead_minus_row_f1", "points", LEAD, "lead − row"), *_test_columns(LEAD)]
    return _table(name, columns, _result_rows(comparison, colours, notes), caption)


def summary_table(cells: Sequence[tuple[str, Group]], name: str, colours: Colours) -> Table:
    """Return the opening table of a data set: method, accuracy, macro-F1, the paper's, and the difference."""
    titles = {"accuracy": "Accuracy", "f1": "Macro-F1", "paper_f1": "Macro-F1, paper", "f1_minus_paper": "Difference"}
    rows = [
        replace(row, block=words if len(cells) > 1 else "", lead=row.name == comparison.lead)
        for words, comparison in cells
        for row, compared in zip(_result_rows(comparison, colours, {}), comparison.rows, strict=True)
        if compared.runs
    ]
    return replace(_table(name, make_columns(titles), rows), small=False)


def _has_bold(comparison: Group) -> bool:
    """Return whether rows are compared on test images. Those of a search are not."""
    return bool(comparison.contrasts) or any(row.rival for row in comparison.rows)


def _result_rows(comparison: Group, colours: Colours, notes: Notes) -> list[Row]:
    rows, with_bold = comparison.rows, _has_bold(comparison)
    best = {key: best_rows(rows, *key, with_bold) for key in product(MOMENTS, SHOWN)}
    tested = any(row.rival for row in rows)
    lines = []
    for place, row in enumerate(rows):
        test, paper = row.tests.get("best"), row.published
        cells = {"n": Cell(len(row.runs), "count"), **_test_cells(test)}
        cells["lead_minus_row_f1"] = Cell(test.paired.mean if test else None, "points")
        for (moment, metric), marks in best.items():
            key = metric if moment == "best" else f"{moment}_{metric}"
            cells[key] = score_cell(row.score(moment, metric), marks[place])
        for metric in SHOWN:
            cells[f"paper_{metric}"] = Cell(paper.mean[metric], "printed", paper.std[metric]) if paper else Cell(None)
            cells[f"{metric}_minus_paper"] = Cell(row.minus_paper(metric), "points")
        if not row.runs:
            cells["accuracy"] = Cell(row.state, missing=True)
        numbers = tuple(sorted(notes[one] for one in row.deviations if one in notes))
        lead, colour = tested and row.name == comparison.lead, colours[row.name] if row.runs else None
        lines.append(Row(row.name, cells, colour=colour, lead=lead, notes=numbers))
    return lines


# --- stated differences ---------------------------------------------------------------------------------------------


def contrast_table(comparison: Group, name: str) -> Table:
    """Return the stated differences at the endpoint and at the chosen round, with tests if the experiment has them."""
    stated = comparison.contrasts
    title = ENDPOINT_TITLES[stated[0].endpoint]
    columns = [Column("n", "n"), *_difference_columns("endpoint", title), *_test_columns(title)]
    columns += [*_difference_columns("chosen", ENDPOINT_TITLES["chosen"]), Column("seeds", "Seeds needed")]
    lines = []
    for one in stated:
        cells = {"n": Cell(one.found.n if one.found else 0, "count"), "seeds": Cell(_seeds_needed(one))}
        cells |= _difference_cells("endpoint", one.found) | _difference_cells("chosen", one.chosen) | _test_cells(one)
        lines.append(Row(one.name, cells))
    caption = TESTED if stated[0].tests else ESTIMATED
    caption += SEEDS_NEEDED if any(line.cells["seeds"].value for line in lines) else ""
    return _table(name, columns, lines, caption, "Difference")


def _seeds_needed(contrast: Contrast) -> str | None:
    """Return how many seeds would show the difference; None if its test or its interval already shows it."""
    if contrast.found is None or (contrast.established if contrast.tests else contrast.found.low > 0):
        return None
    return count_seeds_needed(contrast) or None


def other_scores_table(comparison: Group, name: str) -> Table:
    """Return the stated differences by other scores than the planned one; they are exploratory."""
    scores: dict[str, Difference] = {"Planned score, over seeds and images": partial(_over_images, comparison.moment)}
    for (moment, metric), title in OTHER_SCORES.items():
        scores[title] = partial(_at_all_seeds, partial(GroupRow.by_seed, moment=moment, metric=metric))
    return _differences(comparison, name, scores)


def rounds_table(comparison: Group, name: str) -> Table:
    """Return the stated differences in the averaged model's macro-F1 after each quarter of the rounds."""
    planned = max(run.planned for run in comparison.runs)
    rounds = sorted({-(-planned * quarter // 4) for quarter in range(1, 5)})
    scores = {f"Round {number}": partial(_at_all_seeds, partial(_averaged_at, number)) for number in rounds}
    return _differences(comparison, name, scores)


def _differences(comparison: Group, name: str, scores: Mapping[str, Difference]) -> Table:
    """Return a table of the stated differences by several scores, each with its interval."""
    rows, lines = {row.name: row for row in comparison.rows}, []
    for one in comparison.contrasts:
        found = {title: difference(one, rows[one.first], rows[one.second]) for title, difference in scores.items()}
        words = {key: f"{points(d.mean)} ({format_interval(d, points)})" if d else None for key, d in found.items()}
        lines.append(Row(one.name, {key: Cell(value) for key, value in words.items()}))
    return _table(name, make_columns({title: title for title in scores}), lines, head="Difference")


def _at_all_seeds(
    score: Callable[[GroupRow], Mapping[int, float]], contrast: Contrast, first: GroupRow, second: GroupRow
) -> Paired | None:
    """Return first − second; None unless every seed of the stated difference has both: diverged runs have no scores."""
    x, y, seeds = score(first), score(second), contrast.by_seed.keys()
    return paired({seed: x[seed] for seed in seeds}, y) if seeds <= x.keys() & y.keys() else None


def _averaged_at(number: int, row: GroupRow) -> dict[int, float]:
    """Return the averaged model's macro-F1 after this round, by seed."""
    return {
        run.seed: score
        for run in row.runs
        for one in run.rounds
        if one.round == number and one.averaged and one.averaged.test
        if (score := one.averaged.test[HEADLINE_METRIC]) is not None
    }


def _over_images(moment: str, contrast: Contrast, *rows: GroupRow) -> Paired | None:
    """Return a difference with an interval that also covers the choice of test images.

    It is cautious: all seeds share the error of the images, and the errors of the two rows are independent.
    """
    found = contrast.found
    matrices = [[getattr(run.details.confusion, moment, None) for run in row.runs if run.details] for row in rows]
    if found is None or not all(matrices) or any(matrix is None for some in matrices for matrix in some):
        return None
    errors = [np.mean([f1_error(np.array(matrix)) for matrix in some]) for some in matrices]
    half = math.hypot(found.high - found.mean, *(Z * float(error) for error in errors))
    return replace(found, low=found.mean - half, high=found.mean + half)


# --- others ---------------------------------------------------------------------------------------------------------


def ladder_table(comparison: Group, name: str, colours: Colours) -> Table:
    """Return what each row of a ladder has at the stated endpoint, its share of the lead's gain, and its time."""
    base, lead = comparison.baseline.name, comparison.lead
    scores = {row.name: row.at_endpoint(comparison.moment) for row in comparison.rows}
    lines, seeds = [], []
    for row in comparison.rows:
        own = scores[row.name]
        found = mean_with_interval(own)
        if found is None:
            continue
        share = None
        shared = sorted(own.keys() & scores[base].keys() & scores[lead].keys())
        gain, whole = (sum(some[seed] - scores[base][seed] for seed in shared) for some in (own, scores[lead]))
        if row.name != base and round(whole, 9) > 0:
            share = gain / whole
            seeds.append(len(shared))
        cells = {
            "n": Cell(found.n, "count"),
            "f1": score_cell(spread(list(own.values()))),
            "interval": Cell(format_interval(found, percent)),
            **_difference_cells("minus", paired(own, scores[base]) if row.name != base else None),
            "share": Cell(share, "percent"),
            "seconds": mean_cell([run.summary.seconds for run in row.runs if run.summary], "seconds"),
        }
        lines.append(Row(row.name, cells, colour=colours[row.name], lead=row.name == lead))
    shared_by = f", n = {format_range(seeds)}" if seeds else ""
    columns = (
        *make_columns({"n": "n", "f1": "Macro-F1", "interval": "95 % interval"}),
        *_difference_columns("minus", f"Minus {base}"),
        *make_columns({"share": f"% of the lead’s gain{shared_by}", "seconds": "Wall time of a run"}),
    )
    caption = "Macro-F1 in percent at the endpoint of the plan, mean ± std over n seeds, in the order of the plan."
    caption += f" % of the lead’s gain: gain over {base} as a share of {lead}’s, over the seeds that all three have."
    return _table(name, columns, lines, caption, "Row")


def pooled_table(found: Mapping[str, tuple[int, Paired]], name: str) -> Table:
    """Return differences that are pooled over cells."""
    rows = [
        Row(words, {"cells": Cell(cells, "count"), "n": Cell(pooled.n, "count"), **_difference_cells("mean", pooled)})
        for words, (cells, pooled) in found.items()
    ]
    titles = {"cells": "Cells", "n": "Clusters", "mean": "Mean, points", "mean_interval": "95 % interval"}
    return _table(name, make_columns(titles), rows, head="Difference in macro-F1")


def search_table(outcome: Outcome, name: str) -> Table:
    """Return the combinations that were tried, and which one validation chose."""
    titles = {**{axis: axis for axis in outcome.axes}, "n": "n", "validation": "validation accuracy + macro-F1"}
    rows = []
    for one in search(outcome):
        score = Cell(one.score.mean, "score", one.score.std) if one.score else Cell("not complete", missing=True)
        cells = {axis: Cell(str(one.at[axis])) for axis in outcome.axes}
        cells |= {"n": Cell(one.score.n if one.score else 0, "count"), "validation": score}
        rows.append(Row(one.row, cells | {"chosen": Cell("chosen" if one.chosen else "")}))
    return _table(name, [*make_columns(titles), Column("chosen", "", text=True)], rows, head="Row")
