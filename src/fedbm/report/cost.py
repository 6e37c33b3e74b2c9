"""What a method costs: bytes sent and received, seconds by phase; means over its seeds, and how far wall times vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedbm.report.figures.curves import NARROW, WIDE, bars
from fedbm.report.grouping import Group, Row
from fedbm.report.sections import Panel, Picture, Section
from fedbm.report.statistics import spread
from fedbm.runs.reader import RunView

PHASES = {
    "train": "local training",
    "generator": "generator",
    "aggregate": "aggregation",
    "evaluate": "evaluation",
    "checkpoint": "checkpoints",
}


@dataclass(frozen=True)
class CostLine:
    name: str
    sent: str  # per round
    received: str  # per round
    total_bytes: str
    round_time: str
    round_range: str  # of its seeds, shortest to longest: one that shared the device may make the mean; "" for one seed
    total_time: str
    total_range: str


def cost_lines(group: Group) -> list[CostLine]:
    return [
        CostLine(
            row.name,
            show_bytes(_mean(row, _per_round(_sent))),
            show_bytes(_mean(row, _per_round(_received))),
            show_bytes(_mean(row, lambda run: _sent(run) + _received(run))),
            *_times(row, _per_round(_total)),
            *_times(row, _total),
        )
        for row in group.rows
    ]


def cost(group: Group, colours: Mapping[str, int]) -> Section:
    note = (
        "Bytes leave the server (sent) and come back to it (received). Seconds are wall-clock time "
        "on the machine that ran it: compare them only where the machine was the same and idle."
    )
    if not group.rows:
        return Section("Bytes and time", note, (), "No run has finished.")
    labels = [(row.name, colours[row.name]) for row in group.rows]
    traffic = {
        "sent to clients": [_mean(row, _per_round(_sent)) for row in group.rows],
        "received from clients": [_mean(row, _per_round(_received)) for row in group.rows],
    }
    seconds = {words: [_mean(row, _phase(name)) for row in group.rows] for name, words in PHASES.items()}
    phases = [sum(each) for each in zip(*seconds.values(), strict=True)]
    rest = [max(0.0, _mean(row, _total) - known) for row, known in zip(group.rows, phases, strict=True)]
    pictures = (
        _drawn(labels, traffic, "Bytes per round, mean over seeds", group.title, show_bytes),
        _drawn(
            labels,
            seconds | {"the rest": rest},
            "Wall-clock time of a run by phase, mean over seeds",
            group.title,
            show_seconds,
        ),
    )
    return Section("Bytes and time", note, (Panel("Cost", pictures),), wide=True)


def show_bytes(count: float) -> str:
    """
    >>> show_bytes(512), show_bytes(44_700_000)
    ('512 B', '44.7 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.95:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def show_seconds(seconds: float) -> str:
    """
    >>> show_seconds(0.84), show_seconds(75), show_seconds(7380)
    ('0.84 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _drawn(
    labels: Sequence[tuple[str, int]],
    parts: Mapping[str, Sequence[float]],
    caption: str,
    where: str,
    show: Callable[[float], str],
) -> Picture:
    wide, narrow = (bars(labels, parts, f"{caption}; {where}", show, width) for width in (WIDE, NARROW))
    return Picture(wide, caption, narrow)


def _mean(row: Row, measure: Callable[[RunView], float]) -> float:
    return spread([measure(run) for run in row.runs]).mean


def _times(row: Row, measure: Callable[[RunView], float]) -> tuple[str, str]:
    """The mean, and the shortest to the longest where they differ in print."""
    found = spread([measure(run) for run in row.runs])
    low, high = show_seconds(found.low), show_seconds(found.high)
    return show_seconds(found.mean), f"{low} – {high}" if low != high else ""


def _per_round(measure: Callable[[RunView], float]) -> Callable[[RunView], float]:
    return lambda run: measure(run) / run.planned


def _sent(run: RunView) -> float:
    return float(run.summary["bytes"]["sent"]) if run.summary else 0.0


def _received(run: RunView) -> float:
    return float(run.summary["bytes"]["received"]) if run.summary else 0.0


def _total(run: RunView) -> float:
    return float(run.summary["seconds"]) if run.summary else 0.0


def _phase(name: str) -> Callable[[RunView], float]:
    return lambda run: sum(float((record.get("seconds") or {}).get(name) or 0.0) for record in run.rounds)
