"""A group of runs → tables of typed cells: every metric, every seed, cost, and rounds to a target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fedbm.methods import FedAvg
from fedbm.report.format import percent
from fedbm.report.grouping import Group
from fedbm.report.model import Cell, Column, Kind, Row, Table
from fedbm.report.tables import BLOCKS, METRICS, Colours, averaged, best_rows, score_cell
from fedbm.runs.reader import RunView
from fedbm.utils.statistics import spread
from fedbm.utils.text import format_range


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
        summaries = [run.summary for run in row.runs if run.summary]
        sent, received = [one.bytes.sent for one in summaries], [one.bytes.received for one in summaries]
        rounds, seconds = [one.rounds for one in summaries], [one.seconds for one in summaries]
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
    tested = [[record.round for record in run.rounds if record.test] for row in rows for run in row.runs]
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
        traffic += record.bytes.sent + record.bytes.received
        if record.test and (record.test["accuracy"] or 0) >= target:
            return record.round, traffic
    return None
