"""Collect every number of experiments in one table for programs: scores as shares of 1, with all digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedbm.experiments.contrasts import Contrast
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.unrecorded_experiments import Unrecorded
from fedbm.report.comparison import MOMENTS, ComparedGroup, ComparedRow, missing_words
from fedbm.report.model import Cell, Column, Row, Table
from fedbm.report.tables import SHOWN, has_averaged_model
from fedbm.utils.statistics import Paired

SCORES = tuple(key for metric in SHOWN for key in (metric, f"{metric}_std"))
FIELDS = (
    *("experiment", "cell", "row", "round", "n"),
    *(*SCORES, *(f"paper_{key}" for key in SCORES), *(f"{metric}_minus_paper" for metric in SHOWN)),
    *("lead", "lead_minus_row_f1", "low", "high", "p", "p_holm", "p_sign_flip", "effect_size"),
    *("notes", "missing", "missing_in_words", "command"),
)


def experiments_data(
    found: Sequence[tuple[Outcome, Sequence[ComparedGroup]]], unrecorded: Sequence[Unrecorded] = ()
) -> Table:
    """Return a line per experiment, cell, row and moment, and per stated contrast; missing rows have no numbers."""
    lines: list[dict[str, Any]] = []
    for outcome, comparisons in found:
        with_average = any(has_averaged_model(comparison.group) for comparison in comparisons)
        moments = [moment for moment in MOMENTS if with_average or not moment.startswith("averaged")]
        for comparison in comparisons:
            lines += [_row(outcome, comparison, row, moment) for row in comparison.rows for moment in moments]
            lines += [_contrast(outcome, comparison, contrast) for contrast in comparison.contrasts]
    for one in unrecorded:
        missing = {"missing": "not run", "missing_in_words": one.needs, "command": one.command}
        lines.append({"experiment": one.name, **missing})
    rows = [Row("", {key: Cell(value) for key, value in line.items()}) for line in lines]
    return Table("data", tuple(Column(key, key) for key in FIELDS), tuple(rows))


def _row(outcome: Outcome, comparison: ComparedGroup, row: ComparedRow, moment: str) -> dict[str, Any]:
    values: dict[str, Any] = {"experiment": outcome.name, "cell": comparison.title, "row": row.name, "round": moment}
    values |= {"n": len(row.runs), "lead": comparison.lead, "command": outcome.command}
    for metric in SHOWN:
        if score := row.score(moment, metric):
            values |= {metric: score.mean, f"{metric}_std": score.std}
        if row.published:
            mean, std = row.published.mean[metric], row.published.std[metric]
            values |= {f"paper_{metric}": mean, f"paper_{metric}_std": std}
        values[f"{metric}_minus_paper"] = row.minus_paper(metric) if moment == "best" else None
    if test := row.tests.get(moment):
        values |= {**_difference(test.paired), "p": test.paired.p, "p_holm": test.corrected}
    return values | {
        "notes": ", ".join(title for title, _ in row.deviations),
        "missing": row.state,
        "missing_in_words": " | ".join(missing_words([row])),
    }


def _contrast(outcome: Outcome, comparison: ComparedGroup, contrast: Contrast) -> dict[str, Any]:
    """Return a line for first − second: *lead* is the first row, *row* the second; p only if it is tested."""
    values = {"experiment": outcome.name, "cell": comparison.title, "row": contrast.second, "round": contrast.endpoint}
    values |= {"lead": contrast.first, "command": outcome.command}
    found = contrast.found
    if found is None:
        return values
    tested = {"p": found.p, "p_holm": contrast.corrected, "p_sign_flip": contrast.sign_flip} if contrast.tested else {}
    return {**values, "n": found.n, **_difference(found), **tested}


def _difference(found: Paired) -> dict[str, float | None]:
    """Return mean, effect size and 95 % interval; a single pair has no interval."""
    low, high = (found.low, found.high) if found.n > 1 else (None, None)
    return {"lead_minus_row_f1": found.mean, "low": low, "high": high, "effect_size": found.size}
