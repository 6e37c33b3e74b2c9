"""fedbm report: write a report of runs, or of the records of experiments: HTML, Markdown, LaTeX or CSV.

examples:
  fedbm report                                                all runs in runs/, to report.html
  fedbm report fedavg-digits fedbm-digits --to table.tex      some runs, as LaTeX
  fedbm report results --to results.md                        records of experiments, as Markdown
The HTML page is one file and needs no network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedbm.cli.flags import add_settings, runs_folder
from fedbm.errors import FedBMError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", help="runs, folders of runs or of records (default: the runs in --out)")
    text = "the file to write: .html, .md, .tex or .csv (default report.html)"
    parser.add_argument("--to", metavar="FILE", default="report.html", help=text)
    add_settings(parser, ["out"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.engine.run_folder import find_runs
    from fedbm.report.write import make_report, report_path, save_report

    out, path = runs_folder(args), report_path(Path(args.to))
    names = args.runs or find_runs(out, [])
    if not names:
        raise FedBMError(f"there are no runs in {out} to report on. 'fedbm run' makes one; --to names the page.")
    console.print(f"report: {save_report(make_report(names, out), path)}")
