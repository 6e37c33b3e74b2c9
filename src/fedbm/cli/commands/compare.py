"""fedbm compare: run methods × β × seeds under the same settings, then print a table and write a report.

examples:
  fedbm compare --data digits --methods fedavg,scaffold,fedbm --betas 0.05,0.1 --seeds 3
  fedbm compare shared.toml --methods all                     a file without [method] and seed
  fedbm compare --methods fedprox,fedbm --mu 0.1              an option of FedProx; FedBM has no mu
  fedbm compare --methods all,fedper.py:FedPer                with a method of your own
Finished runs are not computed again. After an interruption, the same command continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedbm.cli.flags import add_all_settings, read_file
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from fedbm.runs.run_config import Config

SEEDS_HELP = "how many seeds, from 0; or which: 3-12, or 0,1,5"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file that all runs share")
    text = "names with commas, all, or classes of your own as FILE.py:CLASS (default fedavg,fedbm)"
    parser.add_argument("--methods", default="fedavg,fedbm", help=text)
    parser.add_argument("--betas", help="values of β with commas (default: one, --beta)")
    parser.add_argument("--seeds", default="3", help=f"{SEEDS_HELP} (default 3)")
    parser.add_argument("--to", metavar="FILE", default="report.html", help="the page to write (default report.html)")
    add_all_settings(parser, without=["seed"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.runs.method_comparison import list_methods, make_grid
    from fedbm.runs.seed_list import parse_seeds

    if args.betas and "beta" in args.settings:
        raise FedBMError("--beta and --betas are both given. Give every β in --betas.")
    base = read_file(args.file) if args.file else {}
    if "method" in base or "seed" in base.get("train", {}):
        raise FedBMError(f"{args.file} sets a method or a seed. Remove them and use --methods and --seeds.")
    betas, seeds = args.betas.split(",") if args.betas else [None], parse_seeds(args.seeds, "--seeds")
    run_configs(make_grid(base, args.settings, list_methods(args.methods), betas, seeds), args.to, console)


def run_configs(configs: Sequence[Config], to: str, console: Console) -> None:
    """Run the configurations, print a table of their scores, and write a report to the file *to*."""
    from fedbm.report.render.terminal import report_tables
    from fedbm.report.write import make_report, report_path, save_report
    from fedbm.runs.method_comparison import run_grid

    path = report_path(Path(to))  # before hours of computing
    jobs, failures = run_grid(configs, console)
    folders = [job.folder for job in jobs if (job.folder / "config.toml").exists()]
    if not folders:
        raise FedBMError(failures[0])
    report = make_report(folders)
    for table in report_tables(report):
        console.print(table)
    page = save_report(report, path)
    console.print(f"report: {page.resolve()} (open it in a browser; it needs no network)")
    check_failures(failures, len(jobs))


def check_failures(failures: Sequence[str], runs: int) -> None:
    """Raise FedBMError if a run failed."""
    if failures:
        raise FedBMError(f"{len(failures)} of {runs} runs failed. The first: {failures[0]}")
