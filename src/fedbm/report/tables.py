"""Comparisons and groups of runs → tables of typed cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.search import search
from fedbm.methods import FedAvg
from fedbm.report.comparison import HEADLINE_METRIC, MOMENTS, ComparedRow, Comparison, Test
from fedbm.report.format import percent
from fedbm.report.grouping import Group, MethodRuns
from fedbm.report.model import Cell, Column, Kind, Row, Table
from fedbm.report.statistics import Spread, spread
from fedbm.runs.reader import RunView
from fedbm.utils.text import format_range

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


def differences_table(comparisons: Sequence[Comparison], name: str) -> Table:
    """Return leading row − every row that is tested against it, next to the paper's difference."""
    columns = (
        *(Column("what", "macro-F1 of", text=True), Column("lead_minus_row_f1", "points"), Column("paper", "paper")),
        *(Column("n", "n"), Column("p", "p"), Column("p_holm", "p (Holm)")),
    )
    rows = [
        Row(
            comparison.title,
            {
                "what": Cell(f"{comparison.lead} − {row.name}"),
                "paper": Cell(comparison.paper_difference(row), "points"),
                "n": Cell(row.tests["best"].paired.n, "count"),
                **test_cells(row.tests["best"]),
            },
        )
        for comparison in comparisons
        for row in comparison.rows
        if "best" in row.tests
    ]
    return Table(name, columns, tuple(rows), head="")


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


# --- one group of runs ----------------------------------------------------------------------------------------------


def metrics_table(group: Group, name: str, colours: Colours, detail: bool = False) -> Table:
    """Return every metric at the chosen and the last round, and of the averaged model if there is one."""
    columns = tuple(Column(key, title) for key, title in {"n": "n", "round": "Round", **METRICS}.items())
    rows = []
    for moment, block in BLOCKS.items():
        if moment == "averaged" and not averaged(group):
            continue
        best = {metric: best_rows(group.rows, moment, metric) for metric in METRICS}
        for place, row in enumerate(group.rows):
            rounds = sorted(row.by_seed(moment, "round").values())
            scores = {m: score_cell(row.score(moment, m), best[m][place]) for m in METRICS}
            at = Cell(format_range(rounds[0], rounds[-1]) if rounds else "")
            rows.append(
                Row(row.name, {"n": Cell(len(row.runs), "count"), "round": at, **scores}, block, colours[row.name])
            )
    return Table(name, columns, tuple(rows), detail=detail)


def seeds_table(group: Group, name: str) -> Table:
    columns = tuple(Column(key, title) for key, title in {"seed": "Seed", "round": "Round", **METRICS}.items())
    rows = [
        Row(
            row.name,
            {
                "seed": Cell(run.seed, "count"),
                "round": Cell(best["round"], "count"),
                **{metric: Cell(best[metric], "percent") for metric in METRICS},
            },
        )
        for row in group.rows
        for run in row.runs
        if (best := run.scores("best")) is not None
    ]
    words = "Seed by seed, at the round chosen on validation"
    return Table(name, columns, tuple(rows), small=True, folded=words, detail=True)


def cost_table(group: Group, name: str, colours: Colours) -> Table:
    """Return bytes and wall-clock time of one run: means over its seeds, and how much the times vary."""
    per_round, whole = "a round", "whole run"
    columns = (
        *(Column("sent", f"Sent {per_round}"), Column("received", f"Received {per_round}")),
        *(Column("bytes", f"Both, {whole}"), Column("round_seconds", f"Wall time {per_round}")),
        Column("seconds", f"Wall time, {whole}"),
    )
    rows = []
    for row in group.rows:
        summaries = [run.summary or {} for run in row.runs]
        sent, received = ([summary["bytes"][way] for summary in summaries] for way in ("sent", "received"))
        rounds, seconds = [run.planned for run in row.runs], [summary["seconds"] for summary in summaries]
        cells = {
            "sent": _mean([s / n for s, n in zip(sent, rounds, strict=True)], "bytes"),
            "received": _mean([r / n for r, n in zip(received, rounds, strict=True)], "bytes"),
            "bytes": _mean([s + r for s, r in zip(sent, received, strict=True)], "bytes"),
            "round_seconds": _mean([s / n for s, n in zip(seconds, rounds, strict=True)], "seconds", between=True),
            "seconds": _mean(seconds, "seconds", between=True),
        }
        rows.append(Row(row.name, cells, colour=colours[row.name]))
    caption = (
        "Bytes and time of one run, mean over the row’s seeds. Wall time is by the clock, and other runs may share the "
        "device. Below the mean are the shortest and the longest seed."
    )
    return Table(name, columns, tuple(rows), caption, small=True, detail=True)


def _mean(values: Sequence[float], kind: Kind, between: bool = False) -> Cell:
    found = spread(values)
    return Cell(found.mean, kind, low=found.low if between else None, high=found.high if between else None)


def target_table(group: Group, name: str, colours: Colours) -> Table | None:
    """Return the rounds and bytes until a run first reaches a given test accuracy; None for a single row.

    The accuracy is FedAvg's at its chosen round, or else that of the lowest row.
    """
    rows = [row for row in group.rows if not row.central]
    if len(rows) < 2:
        return None
    means = {row.name: (score.mean if (score := row.score("best", "accuracy")) else 0.0) for row in rows}
    base = next((row for row in rows if row.method == FedAvg.name), min(rows, key=lambda row: means[row.name]))
    target = means[base.name]
    tested = [[record["round"] for record in run.rounds if record["test"]] for row in rows for run in row.runs]
    step = max((after - before for rounds in tested for before, after in pairwise([0, *rounds])), default=1)
    caption = (
        f"To reach a test accuracy of {percent(target)} %, that of {base.name} at the round chosen on validation. "
        "Round and bytes are those of the seeds that reach it, the bytes their mean; evaluated "
        f"{'every round' if step == 1 else f'at most every {step} rounds'}"
    )
    columns = (
        *(Column("reached", "Seeds that reach it"), Column("round", "First at round")),
        Column("traffic", "Bytes until then"),
    )
    shown = []
    for row in rows:
        found = [first for run in row.runs if (first := first_reached(run, target))]
        rounds = sorted(number for number, _ in found)
        shown.append(
            Row(
                row.name,
                {
                    "reached": Cell(f"{len(found)} of {len(row.runs)}"),
                    "round": Cell(format_range(rounds[0], rounds[-1]) if rounds else "not reached"),
                    "traffic": _mean([size for _, size in found], "bytes") if found else Cell("not reached"),
                },
                colour=colours[row.name],
            )
        )
    return Table(name, columns, tuple(shown), caption, small=True, detail=True)


def first_reached(run: RunView, target: float) -> tuple[int, float] | None:
    """Return (round, bytes both ways so far) of the first evaluated round with test accuracy ≥ target."""
    traffic = 0.0
    for record in run.rounds:
        traffic += record["bytes"]["sent"] + record["bytes"]["received"]
        if record["test"] and record["test"]["accuracy"] >= target:
            return int(record["round"]), traffic
    return None
