"""Bytes and wall-clock time of a group of runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedbm.report.figures.bars import stacked_bars
from fedbm.report.group_tables import cost_table, target_table
from fedbm.report.grouping import Group, MethodRuns
from fedbm.report.model import Figure, Figures, Section, figure_section
from fedbm.report.tables import Colours
from fedbm.runs.reader import RunView
from fedbm.utils.statistics import spread
from fedbm.utils.text import format_bytes, format_seconds

PHASES = {
    "train": "local training",
    "generator": "generator",
    "aggregate": "aggregation",
    "evaluate": "evaluation",
    "checkpoint": "checkpoints",
}


def bytes_and_time(group: Group, name: str, colours: Colours) -> Section:
    note = (
        "Bytes leave the server (sent) and come back to it (received). Seconds are wall-clock time "
        "on the machine that ran it: compare them only where the machine was the same and idle."
    )
    if not group.rows:
        return figure_section("Bytes and time", note, Figures({}), "No run has finished.")
    labels = [(row.name, colours[row.name]) for row in group.rows]
    ways = {"sent": "sent to clients", "received": "received from clients"}
    traffic = {words: [_mean(row, partial(_bytes_per_round, way)) for row in group.rows] for way, words in ways.items()}
    seconds = {words: [_mean(row, partial(_phase, phase)) for row in group.rows] for phase, words in PHASES.items()}
    known = [sum(each) for each in zip(*seconds.values(), strict=True)]
    seconds["the rest"] = [max(0.0, _mean(row, _seconds) - some) for row, some in zip(group.rows, known, strict=True)]
    captions = ("Bytes per round, mean over seeds", "Wall-clock time of a run by phase, mean over seeds")
    figures = [
        Figure(partial(stacked_bars, labels, parts, f"{caption}; {group.title}", write), caption)
        for caption, parts, write in zip(captions, (traffic, seconds), (format_bytes, format_seconds), strict=True)
    ]
    target = target_table(group, f"{name} target", colours)
    more = (cost_table(group, f"{name} cost", colours), *((target,) if target else ()))
    return figure_section("Bytes and time", note, Figures({"Cost": figures}), "", more)


def _mean(row: MethodRuns, measure: Callable[[RunView], float]) -> float:
    return spread([measure(run) for run in row.runs]).mean


def _bytes_per_round(way: str, run: RunView) -> float:
    return float(getattr(run.summary.bytes, way)) / run.planned if run.summary else 0.0


def _seconds(run: RunView) -> float:
    return float(run.summary.seconds) if run.summary else 0.0


def _phase(name: str, run: RunView) -> float:
    return sum(float((record.seconds or {}).get(name) or 0.0) for record in run.rounds)
