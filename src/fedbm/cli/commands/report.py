"""fedbm report: runs, or records of experiments, as a page, Markdown, LaTeX or CSV."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedbm.cli.flags import add_settings, runs_folder
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError, join_words

if TYPE_CHECKING:
    from rich.console import Console

HELP = "draw one offline HTML page from runs, or from the records of experiments"
EXAMPLES = """examples:
  fedbm report                                                all runs in runs/, to report.html
  fedbm report fedavg-digits fedbm-digits --to table.tex      some runs, as LaTeX
  fedbm report results --to results.md                        records of experiments, as Markdown
"""
TABLES = (".md", ".tex", ".csv")


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        help="runs: folders of one or many, ids or parts of ids (default: all in --out); or a folder of records",
    )
    parser.add_argument(
        "--to", default="report.html", help="the page to write (default report.html), or .md, .tex or .csv"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown instead")
    add_settings(parser, ["out"])


def execute(args: argparse.Namespace, console: Console) -> None:
    out = runs_folder(args)
    if out.suffix in (".html", ".htm", *TABLES):
        raise FedBMError(f"--out is the folder of runs. To name the page to write, use --to {out}.")
    records = [Path(name) for name in args.runs if is_records(Path(name))]
    if records and len(records) < len(args.runs):
        raise FedBMError("runs and records cannot be in one report. Give one kind at a time.")
    if records:
        report_records(records, args, console)
    else:
        report_runs(out, args, console)


def report_runs(out: Path, args: argparse.Namespace, console: Console) -> None:
    """Write a report of run folders."""
    from fedbm.report.render.html import write_report
    from fedbm.report.render.latex import latex_table
    from fedbm.report.tables import comma_separated_runs, markdown_table
    from fedbm.runs.plan import find_runs
    from fedbm.utils.io import write_text

    chosen = find_runs(out, args.runs)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to report on")
    to, tables = Path(args.to), dict(zip(TABLES, (markdown_table, latex_table, comma_separated_runs), strict=True))
    if args.markdown:
        print(markdown_table(chosen))
    elif to.suffix in tables:
        write_text(to, tables[to.suffix](chosen))
        console.print(f"report: {to}", soft_wrap=True)
    else:
        check_page(to)
        console.print(f"report: {write_report(chosen, to)}", soft_wrap=True)


def report_records(paths: list[Path], args: argparse.Namespace, console: Console) -> None:
    """Write a report of experiments' records."""
    from fedbm.experiments.latex import latex
    from fedbm.experiments.outcomes import read_outcome, read_outcomes
    from fedbm.experiments.report import write_outcomes
    from fedbm.experiments.tables import comma_separated, markdown
    from fedbm.utils.io import write_text

    outcomes = [o for path in paths for o in (read_outcomes(path) if path.is_dir() else [read_outcome(path)])]
    whole = any(path.is_dir() for path in paths)
    to, tables = Path(args.to), dict(zip(TABLES, (markdown, latex, comma_separated), strict=True))
    if args.markdown:
        print(markdown(outcomes, whole), end="")
    elif to.suffix in tables:
        write_text(to, tables[to.suffix](outcomes, whole))
        console.print(f"report: {to}", soft_wrap=True)
    else:
        check_page(to)
        console.print(f"report: {write_outcomes(outcomes, to, whole=whole)}", soft_wrap=True)


def check_page(to: Path) -> None:
    """Raise FedBMError if the name of a page does not state its format."""
    if not (to.is_dir() or to.suffix in (".html", ".htm")):
        raise FedBMError(f"the format of {to} is unknown. End its name in {join_words(['.html', *TABLES])}.")


def is_records(path: Path) -> bool:
    """Return whether a path is a folder of records, or the record of one experiment."""
    if path.is_dir():
        return not (path / "config.toml").exists() and any(path.glob("*.json"))
    return path.suffix == ".json" and path.is_file()
