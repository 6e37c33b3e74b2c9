"""fedbm compare: run methods × β × seeds in parallel, then print a table and draw a report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbm.cli.flags import add_all_settings, check_applies, check_language_applies, given_settings
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from rich.console import Console

    from fedbm.runs.batch import Job
    from fedbm.runs.config import Config

HELP = "run methods × β × seeds under one protocol, then draw a table and a report"
EXAMPLES = """examples:
  fedbm compare --data digits --methods fedavg,scaffold,fedbm --betas 0.05,0.1 --seeds 3
  fedbm compare shared.toml --methods all                     a file without [method] and seed
  fedbm compare --methods fedprox,fedbm --fedprox-mu 0.1      an option of one method
Finished runs are not computed again. After an interruption, the same command continues.
"""
SEEDS_HELP = "how many seeds, from 0; or which: 3-12, or 0,1,5"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file that all runs share")
    parser.add_argument("--methods", default="fedavg,fedbm", help="names with commas, or all (default fedavg,fedbm)")
    parser.add_argument("--betas", help="values of β with commas (default: one, --beta)")
    parser.add_argument("--seeds", default="3", help=f"{SEEDS_HELP} (default 3)")
    parser.add_argument("--to", default="report.html", help="the page to write (default report.html)")
    add_all_settings(parser, without=["method", "seed"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.progress import decoding, showing_batch
    from fedbm.cli.tables import comparison_tables
    from fedbm.report.write import write_report
    from fedbm.runs.batch import plan_jobs, run_batch

    configs, flags = read_grid(args)
    beta = "--betas" if args.betas else "--beta"
    for config in configs:
        check_applies(flags, config, beta, recommended=False)
    check_language_applies(flags, [config.method for config in configs])
    with decoding(console) as progress:
        jobs = plan_jobs(configs, progress=progress)
    for job in jobs:
        check_applies(flags, job.config, beta)  # again: the data may recommend another partition
    print_finished(jobs, console)
    with showing_batch(console, jobs) as show:
        result = run_batch(jobs, show)
    folders = [job.folder for job in jobs if (job.folder / "config.toml").exists()]
    if not folders:
        raise FedBMError(result.failures[0])
    for table in comparison_tables(folders):
        console.print(table)
    console.print(f"report: {write_report(folders, Path(args.to)).resolve()}", soft_wrap=True)
    check_failures(result.failures, len(jobs))


def read_grid(args: argparse.Namespace) -> tuple[list[Config], list[str]]:
    """Return the configuration of every run, and the flags that were given."""
    from fedbm.runs.compare import list_methods, make_grid
    from fedbm.runs.config import read_toml
    from fedbm.runs.seed_list import parse_seeds

    given = given_settings(args)
    if args.betas and "beta" in given:
        raise FedBMError("--beta and --betas are both given. Give every β in --betas.")
    flags = [*given, *(["beta"] if args.betas else [])]
    betas: list[Any] = args.betas.split(",") if args.betas else [given.pop("beta", None)]
    base = read_toml(Path(args.file)) if args.file else {}
    if "seed" in base.get("train", {}):
        raise FedBMError(f"{args.file} sets a seed. Remove that line and use --seeds.")
    if "method" in base:
        raise FedBMError(f"{args.file} has a [method] section. Remove it and use --methods and flags.")
    return make_grid(base, given, list_methods(args.methods), betas, parse_seeds(args.seeds)), flags


def print_finished(jobs: Sequence[Job], console: Console) -> None:
    """Print how many runs are finished, if any are."""
    if done := sum(job.is_finished for job in jobs):
        console.print(f"{done} of {len(jobs)} runs are finished already")


def check_failures(failures: Sequence[str], runs: int) -> None:
    """Raise FedBMError if a run failed."""
    if failures:
        raise FedBMError(f"{len(failures)} of {runs} runs failed. The first: {failures[0]}")
