"""Build tables of typed cells: scores and tests of a comparison; metrics, cost and rounds to target of a group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from fedbm.errors import join_words
from fedbm.experiments.contrasts import Contrast
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.search import search
from fedbm.methods import FedAvg
from fedbm.report.comparison import HEADLINE_METRIC, MOMENTS, ComparedGroup, ComparedRow, mean_with_interval
from fedbm.report.document import Cell, Column, Kind, Row, Table
from fedbm.report.format import NO_VALUE, format_interval, percent, points
from fedbm.report.grouping import Group, MethodRuns
from fedbm.report.verdicts import LEVEL, count_seeds_needed
from fedbm.runs.run_view import RunView
from fedbm.utils.statistics import Paired, Spread, paired, spread, spread_or_none
from fedbm.utils.text import format_range

METRICS = {"accuracy": "Accuracy", "f1": "Macro-F1", "auc": "AUC", "recall": "Recall", "precision": "Precision"}
SHOWN = {metric: METRICS[metric] for metric in ("accuracy", "f1")}  # in tables of experiments
BLOCKS = {
    "best": "At the round chosen on validation",
    "last": "At the last round",
    "averaged": "Averaged model, after the last round",
}
CLASS_METRICS = {"n": "n", "precision": "Precision", "recall": "Recall", "f1": "F1"}
LEAD = "Lead − row, macro-F1"
OTHER_SCORES = {  # (moment, metric) → title
    ("last", "f1"): "Macro-F1, last round",
    ("last_quarter", "f1"): "Macro-F1, last quarter",
    ("averaged", "accuracy"): "Accuracy, averaged",
    ("averaged", "recall"): "Mean recall of classes, averaged",
    ("averaged", "auc"): "AUC, averaged",
}
ENDPOINT_TITLES = {"averaged last": "Averaged model, last round", "chosen": "Chosen round"}
DIFFERENCE = f"lead_minus_row_{HEADLINE_METRIC}"
Colours = Mapping[str, int]


def best_rows(rows: Sequence[MethodRuns], moment: str, metric: str) -> list[bool]:
    """Return which rows print the highest mean; none if only one row has a score.

    Only rows with the most seeds take part, because seeds differ more than methods. Central training does not.
    """
    most = max((len(row.runs) for row in rows if not row.central), default=0)
    scores = [row.score(moment, metric) if not row.central and len(row.runs) == most else None for row in rows]
    means = [score.mean for score in scores if score]
    top = percent(max(means)) if len(means) > 1 else None
    return [score is not None and percent(score.mean) == top for score in scores]


def has_averaged_model(group: Group) -> bool:
    """Return whether any run of the group has an averaged model."""
    return any(run.scores("averaged") for row in group.rows for run in row.runs)


def _columns(titles: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(key, title) for key, title in titles.items())


def score_cell(score: Spread | None, best: bool = False) -> Cell:
    return Cell(score.mean, "percent", score.std, best=best) if score else Cell(None, "percent")


# --- experiments ----------------------------------------------------------------------------------------------------


def results_table(
    comparison: ComparedGroup, name: str, colours: Colours, notes: Mapping[tuple[str, str], int]
) -> Table:
    """Return the table of an experiment's cell: ours, the paper's, the difference, last rounds, tests, notes."""
    caption = "Test scores in percent at the round chosen on validation, mean ± std over n seeds."
    if comparison.lead and _has_bold(comparison):
        tinted = "; tinted: the leading row" if any(row.rival for row in comparison.rows) else ""
        caption += f" Bold: highest mean among rows with the most seeds{tinted}."
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
    return Table(name, _columns(titles), tuple(rows))


def _result_rows(comparison: ComparedGroup, colours: Colours, notes: Mapping[tuple[str, str], int]) -> list[Row]:
    rows = comparison.rows
    none = [False] * len(rows)
    best = {
        (moment, metric): best_rows(rows, moment, metric) if _has_bold(comparison) else none
        for moment in MOMENTS
        for metric in SHOWN
    }
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
    columns += _columns({"last_f1": "F1, last round", "last_quarter_f1": "F1, last quarter"})
    if has_averaged_model(comparison.group):
        columns += _columns({"averaged_accuracy": "Accuracy, averaged", "averaged_f1": "F1, averaged"})
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
        cells = {}
        for moment, metric in OTHER_SCORES:
            found = paired(*(by_name[row].by_seed(moment, metric) for row in (one.first, one.second)))
            cells[f"{moment} {metric}"] = Cell(_difference_words(found))
        lines.append(Row(one.name, cells))
    columns = _columns({f"{moment} {metric}": title for (moment, metric), title in OTHER_SCORES.items()})
    return Table(name, columns, tuple(lines), head="Difference", small=True)


def rounds_table(comparison: ComparedGroup, name: str) -> Table:
    """Return the stated differences in the averaged model's macro-F1 after each quarter of the rounds."""
    by_name = {row.name: row for row in comparison.rows}
    planned = max(run.planned for run in comparison.group.runs)
    rounds = sorted({-(-planned * quarter // 4) for quarter in range(1, 5)})
    lines = []
    for one in comparison.contrasts:
        cells = {}
        for number in rounds:
            found = paired(*(_averaged_at(by_name[row], number) for row in (one.first, one.second)))
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
    scores = {row.name: [class_scores(run, comparison.moment) for run in row.runs] for row in comparison.rows}
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
    base, lead = comparison.baseline, comparison.leading
    scores = {row.name: row.at_endpoint(comparison.moment) for row in comparison.rows}
    apart = {row: paired(found, scores[base.name]) for row, found in scores.items() if row != base.name}
    whole = apart.get(lead.name) if lead else None
    lines = []
    for row in comparison.rows:
        found, difference = mean_with_interval(scores[row.name]), apart.get(row.name)
        if found is None:
            continue
        if difference is not None and difference.n < 2:  # one seed shows nothing
            difference = None
        cells = {
            "n": Cell(found.n, "count"),
            "f1": score_cell(spread(list(scores[row.name].values()))),
            "interval": Cell(format_interval(found, percent)),
            "minus": Cell(difference.mean if difference else None, "points"),
            "minus_interval": Cell(format_interval(difference, points) if difference else NO_VALUE),
            "share": Cell(difference.mean / whole.mean if difference and whole and whole.mean > 0 else None, "percent"),
            "seconds": _mean([run.summary.seconds for run in row.runs if run.summary], "seconds"),
        }
        lines.append(Row(row.name, cells, colour=colours[row.name], lead=row is lead))
    columns = (
        *_columns({"n": "n", "f1": "Macro-F1", "interval": "95 % interval"}),
        *_interval_columns("minus", f"Minus {base.name}"),
        *_columns({"share": "% of the lead’s", "seconds": "Wall time of a run"}),
    )
    caption = "Macro-F1 in percent at the endpoint of the plan, mean ± std over n seeds, in the order of the plan."
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
    return Table(name, _columns(titles), tuple(rows), head="Difference in macro-F1", small=True)


def search_table(outcome: Outcome, name: str) -> Table:
    """Return the combinations that were tried, and which one validation chose."""
    columns = (
        *_columns({**{axis: axis for axis in outcome.axes}, "n": "n", "validation": "validation accuracy + macro-F1"}),
        Column("chosen", "", text=True),
    )
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


# --- groups of runs -------------------------------------------------------------------------------------------------


def metrics_table(group: Group, name: str, colours: Colours) -> Table:
    """Return every metric at the chosen and the last round, and of the averaged model if there is one."""
    rows = []
    for moment, block in BLOCKS.items():
        if moment == "averaged" and not has_averaged_model(group):
            continue
        best = {metric: best_rows(group.rows, moment, metric) for metric in METRICS}
        for place, row in enumerate(group.rows):
            cells = {"n": Cell(len(row.runs), "count"), "round": _range(row.by_seed(moment, "round").values(), "")}
            cells |= {metric: score_cell(row.score(moment, metric), best[metric][place]) for metric in METRICS}
            rows.append(Row(row.name, cells, block, colours[row.name]))
    return Table(name, _columns({"n": "n", "round": "Round", **METRICS}), tuple(rows))


def class_table(group: Group, name: str, colours: Colours) -> Table | None:
    """Return precision, recall and F1 of every class at the chosen round; None if no run has a confusion matrix."""
    found = {row.name: [class_scores(run, "best") for run in row.runs if run.details is not None] for row in group.rows}
    rows = []
    for class_name in dict.fromkeys(one for runs in found.values() for scores in runs for one in scores):
        for row in group.rows:
            runs = [scores[class_name] for scores in found[row.name] if class_name in scores]
            cells = {key: score_cell(spread_or_none([one[key] for one in runs])) for key in CLASS_METRICS}
            cells["n"] = Cell(runs[0]["n"] if runs else None, "count")
            rows.append(Row(row.name, cells, class_name, colours[row.name]))
    words = "Class by class, at the round chosen on validation"
    caption = "Test scores in percent, mean ± std over seeds; n test images of the class."
    if pooled := [row.name for row in group.rows if not row.global_model]:
        caption += f" Those of {join_words(pooled, 'and')} count once for every client’s own model."
    return Table(name, _columns(CLASS_METRICS), tuple(rows), caption, small=True, folded=words) if rows else None


def class_scores(run: RunView, moment: str) -> dict[str, dict[str, float | None]]:
    """Return n, precision, recall and F1 by class; None where the class does not occur."""
    matrix = np.array((getattr(run.details.confusion, moment) if run.details else None) or ())
    if run.details is None or not matrix.size:
        return {}
    hits, truths, guesses = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    return {
        name: {
            "n": int(n),
            "precision": float(hit / max(guessed, 1)) if n else None,
            "recall": float(hit / n) if n else None,
            "f1": float(2 * hit / (n + guessed)) if n else None,
        }
        for name, hit, n, guessed in zip(run.details.classes, hits, truths, guesses, strict=True)
    }


def seeds_table(group: Group, name: str) -> Table:
    """Return every metric of every seed at the chosen round."""
    kinds: dict[str, Kind] = {"round": "count", **dict.fromkeys(METRICS, "percent")}
    rows = [
        Row(row.name, {"seed": Cell(run.seed, "count"), **{key: Cell(best[key], kind) for key, kind in kinds.items()}})
        for row in group.rows
        for run in row.runs
        if (best := run.scores("best")) is not None
    ]
    words = "Seed by seed, at the round chosen on validation"
    columns = _columns({"seed": "Seed", "round": "Round", **METRICS})
    return Table(name, columns, tuple(rows), small=True, folded=words, detail=True)


def cost_table(group: Group, name: str, colours: Colours) -> Table:
    """Return bytes and wall-clock time of one run: means over its seeds, and how much the times vary."""
    titles = {
        "sent": "Sent a round",
        "received": "Received a round",
        "bytes": "Both, whole run",
        "round_seconds": "Wall time a round",
        "seconds": "Wall time, whole run",
    }
    rows = []
    for row in group.rows:
        runs = [(run.summary.bytes, run.summary.seconds, run.summary.rounds) for run in row.runs if run.summary]
        cells = {
            "sent": _mean([size["sent"] / rounds for size, _, rounds in runs], "bytes"),
            "received": _mean([size["received"] / rounds for size, _, rounds in runs], "bytes"),
            "bytes": _mean([size["sent"] + size["received"] for size, _, _ in runs], "bytes"),
            "round_seconds": _mean([seconds / rounds for _, seconds, rounds in runs], "seconds", with_std=True),
            "seconds": _mean([seconds for _, seconds, _ in runs], "seconds", with_std=True),
        }
        rows.append(Row(row.name, cells, colour=colours[row.name]))
    caption = (
        "Bytes and time of one run: means over the row’s seeds, for times ± standard deviation. Wall time includes "
        "waiting for other runs on the same device."
    )
    return Table(name, _columns(titles), tuple(rows), caption, small=True, detail=True)


def target_table(group: Group, name: str, colours: Colours) -> Table | None:
    """Return the rounds and bytes until a run first reaches a given test accuracy; None for a single row.

    The target is FedAvg's accuracy at its chosen round; without FedAvg, the lowest accuracy of all rows.
    """
    rows = [row for row in group.rows if not row.central]
    if len(rows) < 2:
        return None
    means = {row.name: (score.mean if (score := row.score("best", "accuracy")) else 0.0) for row in rows}
    base = next((row for row in rows if row.method == FedAvg.name), min(rows, key=lambda row: means[row.name]))
    target = means[base.name]
    tested = [[record.round for record in run.rounds if record.test] for row in rows for run in row.runs]
    step = max((after - before for rounds in tested for before, after in pairwise([0, *rounds])), default=1)
    caption = (
        f"The target is a test accuracy of {percent(target)} %, which {base.name} has at the round chosen on "
        "validation. Rounds and mean bytes are those of the seeds that reach it. Models were evaluated "
        f"{'every round' if step == 1 else f'at least every {step} rounds'}."
    )
    lines = []
    for row in rows:
        found = [first for run in row.runs if (first := first_reached(run, target))]
        cells = {
            "reached": Cell(f"{len(found)} of {len(row.runs)}"),
            "round": _range([number for number, _ in found], "not reached"),
            "traffic": _mean([size for _, size in found], "bytes") if found else Cell("not reached"),
        }
        lines.append(Row(row.name, cells, colour=colours[row.name]))
    columns = _columns({"reached": "Seeds that reach it", "round": "First at round", "traffic": "Bytes until then"})
    return Table(name, columns, tuple(lines), caption, small=True, detail=True)


def first_reached(run: RunView, target: float) -> tuple[int, float] | None:
    """Return (round, bytes both ways so far) of the first evaluated round with test accuracy ≥ target."""
    traffic = 0.0
    for record in run.rounds:
        traffic += record.bytes.sent + record.bytes.received
        if record.test and (record.test["accuracy"] or 0) >= target:
            return int(record.round), traffic
    return None


def _mean(values: Sequence[float], kind: Kind, with_std: bool = False) -> Cell:
    if not values:
        return Cell(None, kind)
    found = spread(values)
    return Cell(found.mean, kind, found.std if with_std else None)


def _range(rounds: Collection[int], otherwise: str) -> Cell:
    return Cell(format_range(min(rounds), max(rounds)) if rounds else otherwise)
