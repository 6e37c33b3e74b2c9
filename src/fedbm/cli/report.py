"""fedbm report: runs, or records of experiments, as HTML, Markdown, LaTeX or CSV."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import given_keys
from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import read_outcome, read_outcomes
from fedbm.report.experiments_report import experiments_report
from fedbm.report.model import Report
from fedbm.report.render.markdown import render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.report.write import RENDERERS, report_path, save_report
from fedbm.runs.config import make_config, nest
from fedbm.runs.plan import find_runs
from fedbm.runs.reader import read_runs


def report(found: argparse.Namespace, console: Console) -> None:
    given = given_keys(found)
    if "out" in given and Path(given["out"]).suffix in RENDERERS:
        raise FedBMError(f"--out is the folder with runs; name the page to write by --to {given['out']}")
    if found.markdown:
        print(render_markdown(_read(found.runs, given)), end="")
    else:
        path = report_path(Path(found.to))
        console.print(f"report: {save_report(_read(found.runs, given), path)}", soft_wrap=True)


def _read(names: Sequence[str], given: dict[str, str]) -> Report:
    records = [Path(name) for name in names if is_records(Path(name))]
    if records and len(records) < len(names):
        raise FedBMError("runs and records of experiments make two reports: give one kind at a time")
    if records:
        outcomes = [o for path in records for o in (read_outcomes(path) if path.is_dir() else [read_outcome(path)])]
        return experiments_report(outcomes, complete=any(path.is_dir() for path in records))
    out = Path(make_config(nest(given)).engine.out).expanduser()
    chosen = find_runs(out, names)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to report on")
    return runs_report(read_runs(chosen))


def is_records(path: Path) -> bool:
    """Return whether the path is a folder of records, or the file of one experiment."""
    if path.is_dir():
        return not (path / "config.toml").exists() and any(path.glob("*.json"))
    return path.suffix == ".json" and path.is_file()
