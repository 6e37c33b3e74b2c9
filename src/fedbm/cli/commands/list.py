"""fedbm list: list the runs in a folder.

examples:
  fedbm list                                                  the runs in runs/
  fedbm list trial                                            the runs in trial/; --out trial means the same
  fedbm list --json | jq -r '.[] | select(.state == "failed") | .reason'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from fedbm.cli.flags import StoreSetting, add_json, add_settings, runs_folder
from fedbm.cli.output import print_json
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from fedbm.runs.run_view import RunView

TEXTS = ("run", "method", "data", "partition")
SHOWN = (*TEXTS, "clients", "rounds", "seed", "accuracy", "F1", "started")  # from left to right
# a narrow terminal drops the last of these first; the id contains the method's name, data and seed
BY_PRIORITY = ("run", "rounds", "accuracy", "partition", "F1", "clients", "method", "started", "seed", "data")
GAP = 2  # between columns
MIN_METHOD_WIDTH = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "folder of runs (default runs)"
    parser.add_argument("out", nargs="?", metavar="DIR", action=StoreSetting, default=argparse.SUPPRESS, help=text)
    add_settings(parser, ["out"])
    add_json(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    """Print the table, then why runs failed, are edited or cannot be read."""
    from fedbm.cli.console_tables import describe_reasons, run_facts
    from fedbm.runs.run_view import EDITED, read_run

    out = runs_folder(args)
    rows: list[Mapping[str, str]] = []
    reasons: list[tuple[str, str, str]] = []
    facts: list[Mapping[str, Any]] = []
    for path in sorted(p.parent for p in out.glob("*/config.toml")):
        try:
            run = read_run(path)
        except FedBMError as error:
            rows.append(dict.fromkeys(SHOWN, "") | {"run": path.name, "rounds": "unreadable"})
            reasons.append(("unreadable", path.name, str(error)))
            facts.append({"run": path.name, "state": "unreadable", "reason": str(error), "path": str(path)})
            continue
        rows.append(format_run(run))
        facts.append(run_facts(run))
        if run.failure:
            reasons.append(("failed", run.id, run.failure))
        if run.edited:
            reasons.append(("edited", run.id, f"config.toml {EDITED}"))
    if args.json:
        print_json(facts)
    elif not rows:
        console.print(f"There are no runs in {out} yet. 'fedbm demo' and 'fedbm run' make some.")
    else:
        console.print(fit_table(rows, console.width if console.is_terminal else sys.maxsize), soft_wrap=True)
        for line in describe_reasons(reasons):
            console.print(line)


def format_run(run: RunView) -> dict[str, str]:
    """Return the text of each column."""
    from fedbm.cli.console_tables import percent

    best = run.summary.best if run.summary else None
    marks = "edited " * run.edited + "failed " * bool(run.failure)  # lines below the table explain them
    end = " no result" if len(run.rounds) == run.planned and not run.finished else ""  # stopped before the summary
    end = " ended early" if run.final_round < run.planned else end
    kind = "" if run.partition == "dirichlet" else run.partition
    started = "–"
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(str((run.environment or {}).get("started")))
        started = f"{moment.astimezone():%Y-%m-%d %H:%M}"
    return {
        "run": run.id,
        "method": run.label,
        "data": run.data,
        "partition": run.partition if run.beta is None else f"{kind} β {run.beta:g}".lstrip(),
        "clients": str(run.clients),
        "rounds": f"{marks}{len(run.rounds)}/{run.planned}{end}",
        "seed": str(run.seed),
        "accuracy": percent(best, "accuracy"),
        "F1": percent(best, "f1"),
        "started": started,
    }


def fit_table(rows: Sequence[Mapping[str, str]], width: int) -> Table:
    """Return a table that fits the width: methods are shortened first, then columns are dropped."""
    from fedbm.cli.console_tables import table

    needed = {head: max(map(cell_len, (head, *(row[head] for row in rows)))) for head in BY_PRIORITY}
    widths: dict[str, int] = {}
    remaining = width
    for head in BY_PRIORITY:
        least = min(needed[head], MIN_METHOD_WIDTH) if head == "method" else needed[head]
        if widths and least > remaining:
            break
        widths[head] = least
        remaining -= least + GAP
    if "method" in widths:
        widths["method"] = min(needed["method"], widths["method"] + remaining + GAP)
    heads = [head for head in SHOWN if head in widths]
    cells = [[_shorten(row[head], widths[head]) for head in heads] for row in rows]
    made = table("", heads, cells, text_columns=sum(head in TEXTS for head in heads))
    made.width = sum(widths.values()) + GAP * (len(widths) - 1)  # so that a long id is not folded
    return made


def _shorten(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
