"""fedbm report: write a report of runs, or of the records of experiments: HTML, Markdown, LaTeX or CSV.

examples:
  fedbm report                                                all runs in runs/, to report.html
  fedbm report fedavg-digits fedbm-digits --to table.tex      some runs, as LaTeX
  fedbm report results --to results.md                        records of experiments, as Markdown
The HTML page is one file and needs no network.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedbm.cli.flags import add_settings, runs_folder
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from fedbm.report.document import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "run folders, folders of runs, or parts of ids (default: all in --out); or a folder of records"
    parser.add_argument("runs", nargs="*", help=text)
    text = "the file to write: .html, .md, .tex or .csv (default report.html)"
    parser.add_argument("--to", default="report.html", help=text)
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown instead")
    add_settings(parser, ["out"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.report.render.markdown import render_markdown
    from fedbm.report.write import RENDERERS, report_path, save_report

    out = runs_folder(args)
    if out.suffix in RENDERERS:
        raise FedBMError(f"--out is the folder of runs. To name the page to write, use --to {out}.")
    if args.markdown:
        print(render_markdown(read_report(out, args.runs)), end="")
        return
    path = report_path(Path(args.to))
    console.print(f"report: {save_report(read_report(out, args.runs), path)}")


def read_report(out: Path, names: Sequence[str]) -> Report:
    """Return the report of the named runs, or of the records of experiments."""
    from fedbm.experiments.outcomes import read_outcome, read_outcomes
    from fedbm.report.experiments_report import experiments_report
    from fedbm.report.runs_report import runs_report
    from fedbm.runs.plan import find_runs
    from fedbm.runs.run_view import read_runs

    records = [Path(name) for name in names if is_records(Path(name))]
    if records and len(records) < len(names):
        raise FedBMError("runs and records cannot be in one report. Give one kind at a time.")
    if records:
        outcomes = [o for path in records for o in (read_outcomes(path) if path.is_dir() else [read_outcome(path)])]
        return experiments_report(outcomes, complete=any(path.is_dir() for path in records))
    chosen = find_runs(out, names)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to report on. 'fedbm run' makes one.")
    return runs_report(read_runs(chosen))


def is_records(path: Path) -> bool:
    """Return whether a path is a folder of records, or the record of one experiment."""
    if path.is_dir():
        return not (path / "config.toml").exists() and any(path.glob("*.json"))
    return path.suffix == ".json" and path.is_file()
