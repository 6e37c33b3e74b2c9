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
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedbm.cli.flags import StoreSetting, add_json, add_settings, runs_folder
from fedbm.cli.output import print_json
from fedbm.config.options import EngineOptions
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from fedbm.runs.run_view import RunView

COLUMNS = ("run", "method", "partition", "rounds", "accuracy", "F1", "started")  # the id has data and seed
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
    from fedbm.runs.run_view import EDITED, read_run

    out = runs_folder(args)
    folders = find_runs(out, [])
    if not folders and (out / "config.toml").exists():
        raise FedBMError(f"{out} is a run: 'fedbm show {out}' shows it")
    if not out.is_dir() and str(out) != EngineOptions.out:  # the default is made by the first run
        raise FedBMError(f"there is no folder {out}")
    rows: list[Mapping[str, str]] = []
    reasons: list[tuple[str, str, str]] = []
    facts: list[Mapping[str, Any]] = []
    for path in folders:
        try:
            run = read_run(path)
        except FedBMError as error:
            rows.append(dict.fromkeys(COLUMNS, "") | {"run": path.name, "rounds": "unreadable"})
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
        heads = [head for head in COLUMNS if console.width >= NARROW or head not in ("method", "started")]
        made = table("", heads, ([row[head] for head in heads] for row in rows), text_columns=heads.index("rounds"))
        made.columns[0].no_wrap = True  # so that an id can be copied
        console.print(made)
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
        "partition": run.partition if run.beta is None else f"{kind} β {run.beta:g}".lstrip(),
        "rounds": f"{marks}{len(run.rounds)}/{run.planned}{end}",
        "accuracy": percent(best, "accuracy"),
        "F1": percent(best, "f1"),
        "started": started,
    }
