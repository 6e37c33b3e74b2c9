"""Every command with its flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from fedbm.cli import federation_arguments
from fedbm.cli.examples import (
    COMPARE_EXAMPLES,
    DATA_EXAMPLES,
    GET_EXAMPLES,
    PREDICT_EXAMPLES,
    REPRODUCE_EXAMPLES,
    RUN_EXAMPLES,
    SWEEP_EXAMPLES,
)
from fedbm.cli.flags import add_keys, names
from fedbm.cli.parser import Parser, add_command
from fedbm.config.options import DEALING
from fedbm.version import __version__

SEEDS = "how many seeds, from 0; or which: 3-12, or 0,1,5"


def make_parser(only: str | None = None) -> Parser:
    """All commands, each with its flags; or with those of *only*, since flags need every method, and so PyTorch."""
    parser = Parser(
        prog="fedbm",
        description="Federated learning for medical images whose hospitals differ.",
        epilog="New here? 'fedbm demo' trains two methods on real digits in under two minutes and draws a report.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fedbm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def command(name: str, help_: str, add_flags: Callable[[Parser], None], **more: Any) -> None:
        made = add_command(commands, name, help_, **more)
        if only in (None, name):
            add_flags(made)

    command("demo", "compare FedAvg and FedBM on handwritten digits and draw a report", demo)
    command("run", "train one model, or go on with a run that was interrupted", run, epilog=RUN_EXAMPLES)
    what = "run methods × β × seeds under one protocol, then draw a table and a report"
    command("compare", what, compare, epilog=COMPARE_EXAMPLES)
    what = "repeat tables and figures of the paper, a portion of time after the other"
    command("reproduce", what, reproduce, epilog=REPRODUCE_EXAMPLES)
    command("sweep", "run a grid of your own the same way, and choose on validation", sweep, epilog=SWEEP_EXAMPLES)
    command("records", "write small records of an experiment's runs, which a report can be made from", records)
    command("list", "list the runs in a folder", listing)
    command("show", "show one run: settings, result, and where its files are", show)
    command("report", "draw one offline HTML page from runs, or from the records of experiments", report)
    command("features", "show where finished runs' models put test images: t-SNE, with the text anchors", features)
    command("export", "write runs' curves for other programs to show", export)
    command("predict", "classify image files with a finished run's model", predict, epilog=PREDICT_EXAMPLES)
    command("concepts", "show how a language model sees a data set's classes, or save it", concepts)
    command("data", "list, get, prepare, inspect and partition data sets", data, epilog=DATA_EXAMPLES)
    what = "run the same methods between machines, over Flower"
    command("federation", what, federation, epilog=federation_arguments.EXAMPLES)
    command("config", "print every setting: section, key, type, default and meaning", config)
    return parser


def demo(parser: Parser) -> None:
    parser.add_argument("--rounds", default=argparse.SUPPRESS, help="rounds of each run (default 20)")
    parser.add_argument("--seeds", default="1", help=f"{SEEDS} (default 1; 3 shows the spread)")
    add_keys(parser, ["out", "cache", "device"])


def run(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file; 'fedbm config' prints all its keys")
    add_keys(parser)


def compare(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file that all runs share")
    parser.add_argument("--methods", default="fedavg,fedbm", help="names with commas, or all (default fedavg,fedbm)")
    parser.add_argument("--betas", help="values of β with commas (default: one, --beta)")
    parser.add_argument("--seeds", default="3", help=f"{SEEDS} (default 3)")
    parser.add_argument("--to", default="report.html", help="the page to write (default report.html)")
    add_keys(parser, names(without=["method", "seed"]))


def reproduce(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, or all (default: list them)")
    add_portions(parser)


def sweep(parser: Parser) -> None:
    parser.add_argument("file", help="a TOML file with [all], [axes], [[rows]] and [search]")
    add_portions(parser)


def records(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all that have a finished run)")
    parser.add_argument("--data-dir", dest="folder", metavar="DIR", help="folder where data sets are found by name")
    parser.add_argument("--seeds", help=f"{SEEDS} (default: the experiment's, else 3)")
    parser.add_argument("--to", default="results", metavar="DIR", help="where records go (default results)")
    add_keys(parser, ["out", "cache"])


def listing(parser: Parser) -> None:
    add_keys(parser, ["out"])


def show(parser: Parser) -> None:
    parser.add_argument("run", help="its folder, its id, or a part of the id")
    add_keys(parser, ["out"])


def report(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        help="runs: folders of one or many, ids or parts of ids (default: all in --out); or a folder of records",
    )
    parser.add_argument(
        "--to",
        default="report.html",
        help="the page to write (default report.html), or .md, .tex or .csv",
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown instead")
    add_keys(parser, ["out"])


def features(parser: Parser) -> None:
    parser.add_argument("runs", nargs="+", help="folders, ids or parts of ids")
    parser.add_argument(
        "--records",
        default="results",
        metavar="DIR",
        help="a folder whose record of the run is renewed (default results)",
    )
    add_averaged(parser)
    add_keys(parser, ["out", "cache", "device", "data_dir"])


def export(parser: Parser) -> None:
    parser.add_argument("runs", nargs="*", help="folders of one or many, ids or parts of ids (default: all in --out)")
    parser.add_argument("--tensorboard", required=True, metavar="DIR", help="folder for TensorBoard's event files")
    add_keys(parser, ["out"])


def predict(parser: Parser) -> None:
    parser.add_argument("run", help="its folder, its id, or a part of the id")
    parser.add_argument("images", nargs="+", help="image files, or folders of them")
    parser.add_argument("--to", metavar="FILE.csv", help="write every class's probability there instead")
    add_averaged(parser)
    add_keys(parser, ["out", "device"])


def add_averaged(parser: Parser) -> None:
    text = "use the averaged model (server_average) instead of the model of the chosen round"
    parser.add_argument("--averaged", action="store_true", help=text)


def concepts(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", help="a configuration file, whose [concepts] say what classes are called")
    parser.add_argument("--save", help="write the distributions to this file (.safetensors)")
    add_keys(parser, ["data", *names("language"), "seed", "cache"])
    parser.add_argument("--ship", metavar="FOLDER", help="rebuild the package's own embeddings from MiniLM's folder")


def data(parser: Parser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK", parser_class=Parser)
    what = "a catalogued name, or a path: an image folder, archive, table or .npz"
    reading = names("data", without=["data", *DEALING])
    add_command(tasks, "list", "list the catalogue: names, classes, licences, and what is here already")

    get = add_command(tasks, "get", "fetch a data set, or say what to download by hand", epilog=GET_EXAMPLES)
    get.add_argument("what", metavar="NAME", help="a catalogued name")
    get.add_argument("--size", default=argparse.SUPPRESS, metavar="N", help="of MedMNIST's sets: 28, 64, 128 or 224")
    get.add_argument("--to", metavar="DIR", help="where to put it (default downloads in $FEDBM_HOME or ~/.cache/fedbm)")
    get.add_argument("--accept-licence", action="store_true", help="accept a licence that limits what you may do")

    prepare = add_command(tasks, "prepare", "decode a data set now, so that runs begin at once")
    prepare.add_argument("what", help=what)
    add_keys(prepare, [*reading, "cache"])

    inspect = add_command(tasks, "inspect", "count, measure and show a data set, and warn of what may go wrong")
    inspect.add_argument("what", help=what)
    inspect.add_argument("--to", metavar="DIR", help="folder for samples.png and inspect.json (default inspect-NAME)")
    add_keys(inspect, [*reading, "cache"])

    partition = add_command(tasks, "partition", "show a data set, and how it would be dealt to clients")
    partition.add_argument("what", help=what)
    partition.add_argument("--picture", metavar="FILE", help="draw the partition (client × class) to this .svg file")
    partition.add_argument("--save", metavar="FILE", help="write it to this .json file, for --partition file")
    add_keys(partition, [*reading, *DEALING, "seed", "cache"])


def federation(parser: Parser) -> None:
    tasks = parser.add_subparsers(dest="task", metavar="TASK", parser_class=Parser)
    federation_arguments.add_tasks(tasks, add_command)


def config(parser: Parser) -> None:
    parser.add_argument("--toml", action="store_true", help="print a complete configuration file instead")
    add_keys(parser, ["method"])


def add_portions(parser: Parser) -> None:
    """What reproduce and sweep have in common: which runs, where the data are, for how long."""
    parser.add_argument("--data-dir", dest="folder", metavar="DIR", help="folder where data sets are found by name")
    parser.add_argument("--seeds", help=f"{SEEDS} (default: the experiment's, else 3)")
    parser.add_argument("--budget", metavar="TIME", help="stop after this time, such as 25m or 1h30m")
    parser.add_argument(
        "--whole", action="store_true", help="begin no run that would not end within the budget, by the pace of others"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="WHAT", help="rows by name, or axis=value,…; may be repeated"
    )
    parser.add_argument(
        "--records",
        default="results",
        metavar="DIR",
        help="where records go; runs on record there are not computed again (default results)",
    )
    parser.add_argument("--plan", action="store_true", help="say what there is and what it would take; run nothing")
    add_keys(parser, names("engine", without=["data_dir"]))
