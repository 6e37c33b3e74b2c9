"""groups → tables: mean ± std over seeds in percent, the highest mean of each column marked; Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbm.report.grouping import Group, Row, compare, display
from fedbm.report.privacy import largest_losses
from fedbm.report.render.escaping import md
from fedbm.report.statistics import Spread
from fedbm.report.text import percent
from fedbm.runs.reader import read_runs

METRICS = {
    "accuracy": "Accuracy",
    "f1": "Macro-F1",
    "auc": "AUC",
    "recall": "Recall",
    "precision": "Precision",
}
MOMENTS = {"best": "At the round chosen on validation", "last": "At the last round"}
AVERAGED = "Averaged model, after the last round"
ABSENT = "–"
FIELDS = (
    *("run", "method", "data", "partition", "beta", "clients", "seed", "rounds", "state", "moment", "round"),
    *METRICS,
)


@dataclass(frozen=True)
class Cell:
    mean: str
    std: str  # "" for one seed
    best: bool


@dataclass(frozen=True)
class Line:
    row: Row
    rounds: str  # "41" or "38–44"; "" for a mean over rounds
    cells: tuple[Cell, ...]


def lines(group: Group, moment: str) -> list[Line]:
    """One line per row, a cell per metric. Best are only rows with the most seeds, for seeds differ more than methods;
    and never Central, a ceiling and not a competitor."""
    most = max((len(row.runs) for row in group.rows if row.method != "central"), default=0)
    scores = [[row.score(moment, metric) for metric in METRICS] for row in group.rows]
    ranked = [row.method != "central" and len(row.runs) == most for row in group.rows]
    rivals = [line for line, counts in zip(scores, ranked, strict=True) if counts]
    tops = [_top([line[column] for line in rivals]) for column in range(len(METRICS))]
    return [
        Line(
            row,
            "" if moment == "last_quarter" else _rounds(row, moment),
            tuple(_cell(score, top if counts else None) for score, top in zip(line, tops, strict=True)),
        )
        for row, line, counts in zip(group.rows, scores, ranked, strict=True)
    ]


def moments_of(group: Group) -> dict[str, str]:
    """Return MOMENTS, and the averaged model where a run of the group has one."""
    found = any(run.scores("averaged") for row in group.rows for run in row.runs)
    return {**MOMENTS, "averaged": AVERAGED} if found else MOMENTS


def markdown_table(run_dirs: Sequence[Path]) -> str:
    """A table per group: the round chosen on validation, and accuracy and macro-F1 at the last round."""
    return "\n".join(_markdown(group) for group in compare(read_runs(run_dirs)))


def _top(column: Sequence[Spread | None]) -> str | None:
    """The highest printed mean: rows that print alike are both best. A single row is not best of anything."""
    means = [score.mean for score in column if score is not None]
    return percent(max(means)) if len(means) > 1 else None


def _cell(score: Spread | None, top: str | None) -> Cell:
    if score is None:
        return Cell(ABSENT, "", False)
    mean = percent(score.mean)
    return Cell(mean, percent(score.std) if score.std is not None else "", mean == top)


def _rounds(row: Row, moment: str) -> str:
    chosen = sorted(row.by_seed(moment, "round").values())
    if not chosen:
        return ""
    return str(chosen[0]) if chosen[0] == chosen[-1] else f"{chosen[0]}–{chosen[-1]}"


def comma_separated_runs(run_dirs: Sequence[Path]) -> str:
    """A line per run and moment, scores as shares of 1 with all digits; a run without a result has its state alone."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(FIELDS)
    for run in read_runs(run_dirs):
        about = [run.id, run.label, run.data, run.partition, run.beta, run.clients, run.seed, run.planned, run.state]
        for moment in [at for at in (*MOMENTS, "averaged") if run.scores(at)] or [""]:
            scores = run.scores(moment) or {}
            writer.writerow([*about, moment, *(scores.get(key) for key in ("round", *METRICS))])
    return written.getvalue()


def shown(cell: Cell) -> str:
    return f"{cell.mean} ± {cell.std}" if cell.std else cell.mean


def grid(group: Group, show: Callable[[Cell], str]) -> list[list[str]]:
    """The group's table as texts, its heads first: one line per row."""
    words = {"last": "last round", "averaged": "averaged"}
    later = [moment for moment in moments_of(group) if moment != "best"]
    heads = ["Method", "Seeds", *METRICS.values()]
    heads += [f"{metric}, {words[moment]}" for moment in later for metric in ("Accuracy", "Macro-F1")]
    texts = []
    for best, *others in zip(*(lines(group, moment) for moment in ("best", *later)), strict=True):
        cells = [*best.cells, *(cell for other in others for cell in other.cells[:2])]
        texts.append([best.row.name, str(len(best.row.runs)), *map(show, cells)])
    return [heads, *texts]


def without_result(group: Group) -> list[str]:
    """A sentence for every run that is in no number."""
    return [f"No result: {display(run.label, run.method)}, seed {run.seed}, {run.state}." for run in group.unfinished]


def _markdown(group: Group) -> str:
    out = [f"**{md(group.title)}**", ""]
    if group.rows:
        heads, *rows = grid(group, _bold)
        out += [_joined(heads), _joined(["---", *["---:"] * (len(heads) - 1)])]
        out += [*(_joined([md(name), *cells]) for name, *cells in rows), ""]
    for sentence in (*(f"Privacy: {loss}." for loss in largest_losses(group)), *without_result(group)):
        out += [md(sentence), ""]
    return "\n".join(out)


def _bold(cell: Cell) -> str:
    return f"**{shown(cell)}**" if cell.best else shown(cell)


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
