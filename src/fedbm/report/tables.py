"""Build tables of a group of runs: metrics, classes, seeds, cost and rounds to target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedbm.methods import FedAvg
from fedbm.report.document import Cell, Column, Kind, Row, Table
from fedbm.report.format import percent
from fedbm.report.group import Group, GroupRow
from fedbm.runs.run_view import RunView
from fedbm.utils.statistics import Spread, spread, spread_or_none
from fedbm.utils.text import format_range

METRICS = {"accuracy": "Accuracy", "f1": "Macro-F1", "auc": "AUC", "recall": "Recall", "precision": "Precision"}
SHOWN = {metric: METRICS[metric] for metric in ("accuracy", "f1")}  # in tables of experiments
BLOCKS = {
    "best": "At the round chosen on validation",
    "last": "At the last round",
    "averaged": "Averaged model, after the last round",
}
CLASS_METRICS = {"n": "Images", "precision": "Precision", "recall": "Recall", "f1": "F1"}
PHASES = {
    "train": "Local training",
    "generator": "Generator",
    "aggregate": "Aggregation",
    "evaluate": "Evaluation",
    "checkpoint": "Checkpoints",
}
BOLD = "Bold: highest mean, if rows have the same seeds and settings."  # the marks of best_rows()
Colours = Mapping[str, int]


def best_rows(rows: Sequence[GroupRow], moment: str, metric: str, with_bold: bool = True) -> list[bool]:
    """Return which rows print the highest mean; none if only one row has a score, or if rows differ in their seeds.

    Seeds differ more than methods. Central training does not take part. None is marked without *with_bold*.
    """
    compared = with_bold and len({row.seeds for row in rows if row.runs and not row.central}) < 2
    scores = [row.score(moment, metric) if compared and not row.central else None for row in rows]
    means = [score.mean for score in scores if score]
    top = percent(max(means)) if len(means) > 1 else None
    return [score is not None and percent(score.mean) == top for score in scores]


def has_averaged_model(group: Group) -> bool:
    """Return whether any run of the group has an averaged model."""
    return any(run.scores("averaged") for row in group.rows for run in row.runs)


def make_columns(titles: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(key, title) for key, title in titles.items())


def score_cell(score: Spread | None, best: bool = False) -> Cell:
    return Cell(score.mean, "percent", score.std, best=best) if score else Cell(None, "percent")


def metrics_table(group: Group, name: str, colours: Colours, with_bold: bool = True) -> Table:
    """Return every metric at the chosen and the last round, and of the averaged model if there is one."""
    rows = []
    for moment, block in BLOCKS.items():
        if moment == "averaged" and not has_averaged_model(group):
            continue
        best = {metric: best_rows(group.rows, moment, metric, with_bold) for metric in METRICS}
        for place, row in enumerate(group.rows):
            cells = {"n": Cell(len(row.runs), "count"), "round": _range(row.by_seed(moment, "round").values(), "")}
            cells |= {metric: score_cell(row.score(moment, metric), best[metric][place]) for metric in METRICS}
            rows.append(Row(row.name, cells, block, colours[row.name]))
    return Table(name, make_columns({"n": "n", "round": "Round", **METRICS}), tuple(rows))


def class_table(group: Group, name: str, colours: Colours, moment: str = "best") -> Table | None:
    """Return precision, recall and F1 of every class; None if no run has a confusion matrix.

    A row has no scores if one of its runs has no matrix, or diverged.
    """
    found = {row.name: [] if row.diverged else [class_scores(run, moment) for run in row.runs] for row in group.rows}
    rows = []
    for class_name in dict.fromkeys(one for runs in found.values() for scores in runs for one in scores):
        for row in group.rows:
            scores = [one.get(class_name, {}) for one in found[row.name]]
            cells = {key: score_cell(spread_or_none([one.get(key) for one in scores])) for key in CLASS_METRICS}
            images = next((one["n"] for one in scores if one), None)
            cells["n"] = Cell(images if row.global_model else None, "count")  # else one for every client's own model
            rows.append(Row(row.name, cells, class_name, colours[row.name]))
    words = f"Class by class, {BLOCKS[moment].lower()}"
    caption = "Test scores in percent, mean ± std over seeds."
    return Table(name, make_columns(CLASS_METRICS), tuple(rows), caption, small=True, folded=words) if rows else None


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
    columns = make_columns({"seed": "Seed", "round": "Round", **METRICS})
    return Table(name, columns, tuple(rows), small=True, folded=words, detail=True)


def cost_table(group: Group, name: str, colours: Colours) -> Table:
    """Return bytes and wall-clock time of one run, also by phase: means over seeds, and how much the times vary."""
    titles = {
        "sent": "Sent a round",
        "received": "Received a round",
        "bytes": "Both, whole run",
        "round_seconds": "Wall time a round",
        "seconds": "Wall time, whole run",
        **PHASES,
    }
    rows = []
    for row in group.rows:
        runs = [(run.summary.bytes, run.summary.seconds, run.summary.rounds) for run in row.runs if run.summary]
        cells = {
            "sent": mean_cell([size["sent"] / rounds for size, _, rounds in runs], "bytes"),
            "received": mean_cell([size["received"] / rounds for size, _, rounds in runs], "bytes"),
            "bytes": mean_cell([size["sent"] + size["received"] for size, _, _ in runs], "bytes"),
            "round_seconds": mean_cell([seconds / rounds for _, seconds, rounds in runs], "seconds", with_std=True),
            "seconds": mean_cell([seconds for _, seconds, _ in runs], "seconds", with_std=True),
        }
        for phase in PHASES:
            totals = [sum(record.seconds.get(phase, 0.0) for record in run.rounds) for run in row.runs]
            cells[phase] = mean_cell(totals, "seconds")
        rows.append(Row(row.name, cells, colour=colours[row.name]))
    caption = (
        "Bytes and time of one run: means over the row’s seeds, for times ± standard deviation; then the wall time of "
        "the whole run by phase. Wall time includes waiting for other runs on the same device."
    )
    return Table(name, make_columns(titles), tuple(rows), caption, small=True, detail=True)


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
    caption = (
        f"The target is a test accuracy of {percent(target)} %, which {base.name} has at the round chosen on "
        "validation. Rounds and mean bytes are those of the seeds that reach it. Only evaluated rounds count."
    )
    lines = []
    for row in rows:
        found = [first for run in row.runs if (first := first_reached(run, target))]
        cells = {
            "reached": Cell(f"{len(found)} of {len(row.runs)}"),
            "round": _range([number for number, _ in found], "not reached"),
            "traffic": mean_cell([size for _, size in found], "bytes") if found else Cell("not reached"),
        }
        lines.append(Row(row.name, cells, colour=colours[row.name]))
    columns = make_columns({"reached": "Seeds that reach it", "round": "First at round", "traffic": "Bytes until then"})
    return Table(name, columns, tuple(lines), caption, small=True, detail=True)


def first_reached(run: RunView, target: float) -> tuple[int, float] | None:
    """Return (round, bytes both ways so far) of the first evaluated round with test accuracy ≥ target."""
    traffic = 0.0
    for record in run.rounds:
        traffic += record.bytes.sent + record.bytes.received
        if record.test and (record.test["accuracy"] or 0) >= target:
            return int(record.round), traffic
    return None


def mean_cell(values: Sequence[float], kind: Kind, with_std: bool = False) -> Cell:
    if not values:
        return Cell(None, kind)
    found = spread(values)
    return Cell(found.mean, kind, found.std if with_std else None)


def _range(rounds: Collection[int], otherwise: str) -> Cell:
    return Cell(format_range(rounds) if rounds else otherwise)
