"""fedbm reproduce: repeat tables and figures of the paper, within a time budget.

examples:
  fedbm reproduce                                             list the experiments
  fedbm reproduce comparison-ham10000 --data-dir DIR --plan   what would run, and how many rounds remain
  fedbm reproduce comparison-ham10000 --data-dir DIR --budget 25m --only beta=0.1 --only FedAvg,FedBM
  fedbm reproduce modules generator-terms --data-dir DIR --only beta=0.05
Run the same command again to continue after the budget ended. Finished runs are not computed again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedbm.cli.commands.compare import SEEDS_HELP, check_failures
from fedbm.cli.flags import add_all_settings, add_json
from fedbm.cli.output import print_json
from fedbm.cli.parser import Parser
from fedbm.errors import FedBMError

if TYPE_CHECKING:
    from fedbm.experiments.outcomes import Outcome
    from fedbm.experiments.reproduction import ExperimentPlan
    from fedbm.experiments.spec import Experiment


def add_arguments(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, or all (default: list them)")
    add_experiment_arguments(parser)


def add_experiment_arguments(parser: Parser) -> None:
    """Add the arguments that reproduce and sweep share: which runs, where the data are, for how long."""
    parser.add_argument("--data-dir", dest="folder", metavar="DIR", help="folder that contains the data sets")
    parser.add_argument("--seeds", help=f"{SEEDS_HELP} (default: the experiment's, else 3)")
    parser.add_argument("--budget", metavar="TIME", help="stop after this time, such as 25m or 1h30m")
    text = "rows by name, or axis=value,…; may be repeated"
    parser.add_argument("--only", action="append", default=[], metavar="WHAT", help=text)
    text = "where to write records; runs with a record there are not computed again (default results)"
    parser.add_argument("--records", default="results", metavar="DIR", help=text)
    parser.add_argument("--plan", action="store_true", help="print which runs and how many rounds remain; start none")
    add_json(parser, "with --plan, print the plan as a JSON document; docs/scripting.md lists its keys")
    add_all_settings(parser, "engine", without=["data_dir"])


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import table
    from fedbm.experiments.reproduction import find_experiments
    from fedbm.experiments.spec import shipped_experiments

    if args.names:
        run_experiments(find_experiments(args.names), args, console)
        return
    rows = [(e.name, e.shows, e.title) for e in find_experiments(shipped_experiments())]
    if args.json:
        print_json([dict(zip(("name", "shows", "title"), row, strict=True)) for row in rows])
    console.print(table("", ("experiment", "shows", "what"), rows, text_columns=3))


def run_experiments(experiments: Sequence[Experiment], args: argparse.Namespace, console: Console) -> None:
    """Print the state of all runs, run those that remain, write records, and print the new state and tables."""
    from fedbm.experiments import reproduction
    from fedbm.runs.batch import find_deadline
    from fedbm.runs.seed_list import parse_seeds

    if args.json and not args.plan:
        raise FedBMError("--json prints a plan. Add --plan, or remove --json to run the experiments.")
    deadline = find_deadline(args.budget)
    engine = reproduction.engine_settings(args.settings, args.folder)
    seeds = parse_seeds(args.seeds, "--seeds") if args.seeds else None
    plan = reproduction.plan_experiments(experiments, seeds, engine, args.only, Path(args.records), console)
    print_states(plan, console)
    if args.plan:
        for sentence in plan.refusals():
            console.print(f"note: no run would start: {sentence}")
        if args.json:
            print_json(plan.to_json())
        return
    runs = len(plan.jobs())
    found = reproduction.run_experiments(plan, console, deadline)
    console.print("\nnow:")
    print_states(plan, console)
    for outcome in found.outcomes:
        print_tables(outcome, console)
    check_failures(found.failures, runs)


def print_states(plan: ExperimentPlan, console: Console) -> None:
    """Print how many runs are in which state, how many rounds remain, and why runs are missing."""
    from fedbm.cli.console_tables import describe_reasons

    found, rounds = plan.states(), plan.remaining_rounds()
    counts = Counter(sorted(run.state for run in found))
    console.print(f"runs: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    console.print(f"remaining: {len(rounds)} runs, {sum(rounds)} rounds")
    for line in describe_reasons((run.state, run.words, run.why) for run in found if run.why):
        console.print(line)


def print_tables(outcome: Outcome, console: Console) -> None:
    """Print the tables of an experiment, its summary if its analysis was planned, and why scores are withheld."""
    from fedbm.report.experiments_report import experiments_report
    from fedbm.report.render.terminal import report_tables

    report = experiments_report([outcome])
    for table in report_tables(report):
        console.print(table)
    for sentence in report.parts[0].summary if outcome.analysis else ():
        console.print(sentence)
    if outcome.withheld:
        console.print(f"{outcome.withheld}.")
