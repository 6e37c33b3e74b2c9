"""groups → tables: mean ± std over seeds in percent, the highest mean of each column marked; or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbm.results.compare import Group, Row, compare, display
from fedbm.results.runs import read_runs
from fedbm.results.statistics import Spread
from fedbm.results.wording import percent

METRICS = {
    "accuracy": "Accuracy",
    "f1": "Macro-F1",
    "auc": "AUC",
    "recall": "Recall",
    "precision": "Precision",
}
MOMENTS = {"best": "At the round chosen on validation", "last": "At the last round"}
ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    mean: str
    std: str  # "" for one seed
    best: bool


@dataclass(frozen=True)
class Line:
    row: Row
    rounds: str  # "41" or "38–44"
    cells: tuple[Cell, ...]


def lines(group: Group, moment: str) -> list[Line]:
    """One line per row, a cell per metric. Central is a ceiling, not a competitor: it is never best."""
    scores = [[row.score(moment, metric) for metric in METRICS] for row in group.rows]
    rivals = [line for row, line in zip(group.rows, scores, strict=True) if row.method != "central"]
    tops = [_top([line[column] for line in rivals]) for column in range(len(METRICS))]
    return [
        Line(
            row,
            _rounds(row, moment),
            tuple(
                _cell(score, top if row.method != "central" else None) for score, top in zip(line, tops, strict=True)
            ),
        )
        for row, line in zip(group.rows, scores, strict=True)
    ]


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
    return str(chosen[0]) if chosen[0] == chosen[-1] else f"{chosen[0]}–{chosen[-1]}"


def _markdown(group: Group) -> str:
    out = [f"**{_safe(group.title)}**", ""]
    if group.rows:
        heads = ["Method", "Seeds", *METRICS.values(), "Accuracy, last round", "Macro-F1, last round"]
        out += [_joined(heads), _joined(["---", *["---:"] * (len(heads) - 1)])]
        for best, last in zip(lines(group, "best"), lines(group, "last"), strict=True):
            shown = [_bold(cell) for cell in (*best.cells, *last.cells[:2])]
            out.append(_joined([_safe(best.row.name), str(len(best.row.runs)), *shown]))
        out.append("")
    for run in group.unfinished:
        name = _safe(display(run.label, run.method))
        out += [f"No result: {name}, seed {run.seed}, {_safe(run.state)}.", ""]
    return "\n".join(out)


def _bold(cell: Cell) -> str:
    text = f"{cell.mean} ± {cell.std}" if cell.std else cell.mean
    return f"**{text}**" if cell.best else text


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
