"""fedbm list: one line per run. A narrow terminal keeps the columns that the id does not contain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_settings, runs_folder
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedbm.runs.reader import RunView

HELP = "list the runs in a folder"
EXAMPLES = """examples:
  fedbm list --out runs
"""
TEXTS = ("run", "method", "data", "partition")
SHOWN = (*TEXTS, "clients", "rounds", "seed", "accuracy", "F1", "started")  # from left to right
# the first are kept longest: an id contains method, seed and data, but not the options of the method
WANTED = ("run", "rounds", "accuracy", "partition", "F1", "clients", "method", "started", "seed", "data")
GAP = 2  # between columns
MIN_METHOD_WIDTH = 20


def add_arguments(parser: Parser) -> None:
    add_settings(parser, ["out"])


def execute(args: argparse.Namespace, console: Console) -> None:
    """Print the table, then why runs failed, are edited or cannot be read, each reason once."""
    from fedbm.runs.reader import EDITED, read_run

    out = runs_folder(args)
    lines: list[Mapping[str, str]] = []
    unreadable: list[str] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for path in sorted(p.parent for p in out.glob("*/config.toml")):
        try:
            run = read_run(path)
        except FedBMError as error:
            lines.append(dict.fromkeys(SHOWN, "") | {"run": path.name, "rounds": "unreadable"})
            unreadable.append(str(error))
            continue
        lines.append(line_of(run))
        if run.failure:
            reasons.setdefault(("failed", run.failure), []).append(run.id)
        if run.edited:
            reasons.setdefault(("edited", f"config.toml {EDITED}"), []).append(run.id)
    if not lines:
        console.print(f"There are no runs in {out} yet. 'fedbm demo' and 'fedbm run' make some.")
        return
    console.print(fit_table(lines, console.width if console.is_terminal else sys.maxsize), soft_wrap=True)
    for (state, why), runs in reasons.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        console.print(f"{state}: {runs[0]}{more}: {why}", soft_wrap=True)
    for why in unreadable:
        console.print(f"unreadable: {why}", soft_wrap=True)


def line_of(run: RunView) -> dict[str, str]:
    """Return a cell for each of SHOWN."""
    from fedbm.cli.tables import percent

    best = run.summary.best if run.summary else None
    return {
        "run": run.id,
        "method": run.label,
        "data": run.data,
        "partition": format_partition(run),
        "clients": str(run.clients),
        "rounds": f"{format_marks(run)}{len(run.rounds)}/{run.planned}{format_end(run)}",
        "seed": str(run.seed),
        "accuracy": percent(best, "accuracy"),
        "F1": percent(best, "f1"),
        "started": format_start(run),
    }


def format_marks(run: RunView) -> str:
    """Return "edited" or "failed", which a line below the table explains."""
    return "edited " * run.edited + "failed " * bool(run.failure)


def format_end(run: RunView) -> str:
    """Return " no result" if a run was stopped after its last round, before the result was written."""
    return " no result" if len(run.rounds) == run.planned and not run.finished else ""


def format_partition(run: RunView) -> str:
    """Return "β 0.05" for a Dirichlet partition, and for others such as "iid" or "quantity β 0.5"."""
    kind = "" if run.partition == "dirichlet" else run.partition
    return f"{kind} β {run.beta:g}".lstrip() if run.beta is not None else run.partition


def format_start(run: RunView) -> str:
    """Return when the run started, in local time."""
    with suppress(ValueError, OverflowError):
        when = datetime.fromisoformat(str((run.environment or {}).get("started")))
        return f"{when.astimezone():%Y-%m-%d %H:%M}"
    return "–"


def fit_table(lines: Sequence[Mapping[str, str]], room: int) -> Table:
    """Return the columns that *room* cells hold, the most wanted first; methods are cut before a column is dropped."""
    from rich.cells import cell_len

    from fedbm.cli.tables import table

    whole = {head: max(map(cell_len, (head, *(line[head] for line in lines)))) for head in WANTED}
    widths: dict[str, int] = {}
    left = room
    for head, width in (whole | {"method": min(whole["method"], MIN_METHOD_WIDTH)}).items():
        if widths and width > left:
            break
        widths[head] = width
        left -= width + GAP
    if "method" in widths:
        widths["method"] = min(whole["method"], widths["method"] + left + GAP)
    heads = [head for head in SHOWN if head in widths]
    rows = [[shorten(line[head], widths[head]) for head in heads] for line in lines]
    made = table("", heads, rows, text_columns=sum(head in TEXTS for head in heads))
    made.width = sum(widths.values()) + GAP * (len(widths) - 1)  # an id wider than the terminal is not folded either
    return made


def shorten(text: str, width: int) -> str:
    """Cut a text to a width, with an ellipsis."""
    from rich.text import Text

    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain
