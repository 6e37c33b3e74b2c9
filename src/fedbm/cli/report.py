"""fedbm report: runs, or records of experiments, as a page, Markdown, LaTeX or CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import given_keys
from fedbm.errors import FedBMError, listed
from fedbm.experiments.latex import latex
from fedbm.experiments.outcomes import read_outcome, read_outcomes
from fedbm.experiments.report import write_outcomes
from fedbm.experiments.tables import comma_separated, markdown
from fedbm.report.render.html import write_report
from fedbm.report.render.latex import latex_table
from fedbm.report.tables import comma_separated_runs, markdown_table
from fedbm.runs.config import make_config, nest
from fedbm.runs.plan import find_runs
from fedbm.utils.io import write_text

OF_RECORDS = {".md": markdown, ".tex": latex, ".csv": comma_separated}
OF_RUNS = {".md": markdown_table, ".tex": latex_table, ".csv": comma_separated_runs}


def report(found: argparse.Namespace, console: Console) -> None:
    given = given_keys(found)
    if "out" in given and Path(given["out"]).suffix in (".html", ".htm", *OF_RUNS):
        raise FedBMError(f"--out is the folder that holds runs; the page to write is named by --to {given['out']}")
    records = [Path(name) for name in found.runs if is_records(Path(name))]
    if records and len(records) < len(found.runs):
        raise FedBMError("runs and records of experiments make two reports: give one kind at a time")
    if records:
        report_records(records, found, console)
        return
    out = Path(make_config(nest(given)).engine.out).expanduser()
    chosen = find_runs(out, found.runs)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to report on")
    to = Path(found.to)
    if found.markdown:
        print(markdown_table(chosen))
    elif to.suffix in OF_RUNS:
        write_text(to, OF_RUNS[to.suffix](chosen))
        console.print(f"report: {to}", soft_wrap=True)
    elif is_page(to):
        console.print(f"report: {write_report(chosen, to)}", soft_wrap=True)
    else:
        raise FedBMError(f"{to} does not say what to write: end its name in {listed(['.html', *OF_RUNS])}")


def is_page(to: Path) -> bool:
    return to.is_dir() or to.suffix in (".html", ".htm")


def is_records(path: Path) -> bool:
    """A folder of records, or the file of one experiment."""
    if path.is_dir():
        return not (path / "config.toml").exists() and any(path.glob("*.json"))
    return path.suffix == ".json" and path.is_file()


def report_records(paths: list[Path], found: argparse.Namespace, console: Console) -> None:
    outcomes = [o for path in paths for o in (read_outcomes(path) if path.is_dir() else [read_outcome(path)])]
    to, whole = Path(found.to), any(path.is_dir() for path in paths)
    if found.markdown:
        print(markdown(outcomes, whole), end="")
    elif to.suffix in OF_RECORDS:
        write_text(to, OF_RECORDS[to.suffix](outcomes, whole))
        console.print(f"report: {to}", soft_wrap=True)
    elif is_page(to):
        console.print(f"report: {write_outcomes(outcomes, to, whole=whole)}", soft_wrap=True)
    else:
        raise FedBMError(f"{to} does not say what to write: end its name in {listed(['.html', *OF_RECORDS])}")
