"""fedbm list: list the runs in a folder.

examples:
  fedbm list                                                  the runs in runs/
  fedbm list old-runs                                         the runs in old-runs/; --out old-runs means the same
  fedbm list --json | jq -r '.[] | select(.state == "failed") | .reason'
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from rich.console import Console

from fedbm.cli.flags import StoreSetting, add_json, add_settings, runs_folder
from fedbm.cli.output import print_json
from fedbm.config.options import EngineOptions
from fedbm.errors import FedBMError

COLUMNS = ("run", "method", "partition", "state", "rounds", "accuracy", "F1", "started")  # the id has data and seed
NARROW = 100  # a terminal with fewer characters per line has no room for the method's options and the start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "folder of runs (default runs)"
    parser.add_argument("out", nargs="?", metavar="DIR", action=StoreSetting, default=argparse.SUPPRESS, help=text)
    add_settings(parser, ["out"])
    add_json(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    """Print the table, then why runs failed, are edited or cannot be read."""
    from fedbm.cli.console_tables import describe_reasons, run_facts, table
    from fedbm.engine.run_folder import find_runs

    out = runs_folder(args)
    if not out.is_dir() and str(out) != EngineOptions.out:  # the default is made by the first run
        raise FedBMError(f"there is no folder {out}")
    facts = [run_facts(path) for path in find_runs(out, [])]
    if args.json:
        print_json(facts)
    elif not facts:
        console.print(f"There are no runs in {out}. 'fedbm run' makes one, and 'fedbm show' shows one.")
    else:
        heads = [head for head in COLUMNS if console.width >= NARROW or head not in ("method", "started")]
        rows = ([row[head] for head in heads] for row in map(format_run, facts))
        made = table("", heads, rows, text_columns=heads.index("rounds"))
        made.columns[0].no_wrap = True  # so that an id can be copied
        console.print(made)
        for line in describe_reasons((show_state(one), one["run"], one["reason"]) for one in facts if one["reason"]):
            console.print(line)


def format_run(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each column."""
    from fedbm.cli.console_tables import percent

    row = {"run": facts["run"], "state": show_state(facts)}
    if facts["state"] == "unreadable":
        return dict.fromkeys(COLUMNS, "") | row
    kind, beta, started = facts["partition"], facts["beta"], "–"
    with suppress(ValueError, OverflowError):
        started = f"{datetime.fromisoformat(str(facts['started'])).astimezone():%Y-%m-%d %H:%M}"
    return row | {
        "method": facts["method"],
        "partition": kind if beta is None else f"{'' if kind == 'dirichlet' else kind} β {beta:g}".lstrip(),
        "rounds": f"{facts['rounds_done']}/{facts['rounds']}",
        "accuracy": percent(facts, "accuracy"),
        "F1": percent(facts, "f1"),
        "started": started,
    }


def show_state(facts: Mapping[str, Any]) -> str:
    """Return the state of a run in one word."""
    return "edited" if facts.get("edited") else str(facts["state"])
