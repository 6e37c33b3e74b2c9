"""fedbm list: one line a run, its id whole; a narrow terminal keeps the columns that an id does not tell."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbm.cli.tables import percent, table
from fedbm.errors import FedBMError
from fedbm.runs.reader import EDITED, RunView, read_run

TEXTS = ("run", "method", "data", "dealt")
SHOWN = (*TEXTS, "clients", "rounds", "seed", "accuracy", "F1", "started")  # from left to right
# the first are kept longest: an id tells method, seed and data, though not the options of the method
WANTED = ("run", "rounds", "accuracy", "dealt", "F1", "clients", "method", "started", "seed", "data")
GAP = 2  # between columns
SHORTEST = 20  # cells that are left of a method and its options


def listing(out: Path, console: Console) -> None:
    """The table, then why runs failed, are edited or cannot be read, each reason once."""
    lines: list[Mapping[str, str]] = []
    unreadable: list[str] = []
    told: dict[tuple[str, str], list[str]] = {}
    for path in sorted(p.parent for p in out.glob("*/config.toml")):
        try:
            run = read_run(path)
        except FedBMError as error:
            lines.append(dict.fromkeys(SHOWN, "") | {"run": path.name, "rounds": "unreadable"})
            unreadable.append(str(error))
            continue
        lines.append(line_of(run))
        if run.failure:
            told.setdefault(("failed", run.failure), []).append(run.id)
        if run.edited:
            told.setdefault(("edited", f"config.toml {EDITED}"), []).append(run.id)
    if not lines:
        console.print(f"there are no runs in {out} yet; 'fedbm demo' or 'fedbm run' makes some")
        return
    console.print(fitted(lines, console.width if console.is_terminal else sys.maxsize), soft_wrap=True)
    for (state, why), runs in told.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        console.print(f"{state}: {runs[0]}{more}: {why}", soft_wrap=True)
    for why in unreadable:
        console.print(f"unreadable: {why}", soft_wrap=True)


def line_of(run: RunView) -> dict[str, str]:
    """A cell for each of SHOWN."""
    best = run.summary["best"] if run.summary else None
    return {
        "run": run.id,
        "method": run.label,
        "data": run.data,
        "dealt": dealt(run),
        "clients": str(run.clients),
        "rounds": f"{doubts(run)}{len(run.rounds)}/{run.planned}{unended(run)}",
        "seed": str(run.seed),
        "accuracy": percent(best, "accuracy"),
        "F1": percent(best, "f1"),
        "started": started(run),
    }


def doubts(run: RunView) -> str:
    """What a line below the table explains."""
    return "edited " * run.edited + "failed " * bool(run.failure)


def unended(run: RunView) -> str:
    """All rounds are there and no result: it was stopped while that was written."""
    return " no result" if len(run.rounds) == run.planned and not run.finished else ""


def dealt(run: RunView) -> str:
    """'β 0.05' by Dirichlet, else the way of dealing, with the β that shapes it: 'iid', 'quantity β 0.5'."""
    kind = "" if run.partition == "dirichlet" else run.partition
    return f"{kind} β {run.beta:g}".lstrip() if run.beta is not None else run.partition


def started(run: RunView) -> str:
    """By the clock of whoever reads."""
    with suppress(ValueError, OverflowError):
        when = datetime.fromisoformat(str((run.environment or {}).get("started")))
        return f"{when.astimezone():%Y-%m-%d %H:%M}"
    return "–"


def fitted(lines: Sequence[Mapping[str, str]], room: int) -> Table:
    """As many columns as *room* cells hold, the most wanted first; methods are cut before a column goes."""
    whole = {head: max(map(cell_len, (head, *(line[head] for line in lines)))) for head in WANTED}
    widths: dict[str, int] = {}
    left = room
    for head, width in (whole | {"method": min(whole["method"], SHORTEST)}).items():
        if widths and width > left:
            break
        widths[head] = width
        left -= width + GAP
    if "method" in widths:
        widths["method"] = min(whole["method"], widths["method"] + left + GAP)
    heads = [head for head in SHOWN if head in widths]
    rows = [[shortened(line[head], widths[head]) for head in heads] for line in lines]
    made = table("", heads, rows, text_columns=sum(head in TEXTS for head in heads))
    made.width = sum(widths.values()) + GAP * (len(widths) - 1)  # an id wider than the terminal is not folded either
    return made


def shortened(text: str, width: int) -> str:
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain
