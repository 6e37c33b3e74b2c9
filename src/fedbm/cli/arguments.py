"""The parser, made from the configuration's own keys: a flag's name, help and default cannot fall out of step."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

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
from fedbm.config import Config, Key, keys
from fedbm.data.catalog import CATALOG
from fedbm.errors import FedBMError, did_you_mean
from fedbm.options import BY_BETA, DEALING
from fedbm.version import __version__

DATA_TASKS = ("list", "get", "prepare", "inspect", "partition")


class Parser(argparse.ArgumentParser):
    """Mistakes become one sentence, with the nearest known word."""

    def error(self, message: str) -> NoReturn:
        raise FedBMError(f"{message}; '{self.prog} --help' explains")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        found, unknown = self.parse_known_args(with_task(arguments))
        if unknown:
            command: Parser = getattr(found, "parser", self)
            flags = [flag for action in command._actions for flag in action.option_strings]
            word = unknown[0].partition("=")[0]
            raise FedBMError(f"{command.prog} does not know {word}{did_you_mean(word, flags)}")
        if found.command is None:
            self.error("no command was given")
        return found


def make_parser() -> Parser:
    parser = Parser(
        prog="fedbm",
        description="Federated learning for medical images whose hospitals differ.",
        epilog="New here? 'fedbm demo' trains two methods on real digits in under two minutes and draws a report.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fedbm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def command(name: str, help_: str, **more: Any) -> Parser:
        return add_command(commands, name, help_, **more)

    demo = command("demo", "compare FedAvg and FedBM on handwritten digits and draw a report")
    demo.add_argument("--rounds", default=argparse.SUPPRESS, help="rounds of each run (default 20)")
    demo.add_argument("--seeds", default="1", help="how many seeds, 0 and up (default 1; 3 shows the spread)")
    add_keys(demo, ["out", "cache", "device"])

    run = command("run", "train one model, or go on with a run that was interrupted", epilog=RUN_EXAMPLES)
    run.add_argument("file", nargs="?", help="a configuration file; 'fedbm config' prints all its keys")
    add_keys(run)

    compare = command(
        "compare", "run methods × β × seeds under one protocol, then draw a table and a report", epilog=COMPARE_EXAMPLES
    )
    compare.add_argument("file", nargs="?", help="a configuration file that all runs share")
    compare.add_argument("--methods", default="fedavg,fedbm", help="names with commas, or all (default fedavg,fedbm)")
    compare.add_argument("--betas", help="values of β with commas (default: one, --beta)")
    compare.add_argument("--seeds", default="3", help="how many seeds, 0 and up (default 3)")
    compare.add_argument("--to", default="report.html", help="the page to write (default report.html)")
    add_keys(compare, [key.flag for key in keys() if key.flag not in ("method", "seed")])

    reproduce = command(
        "reproduce",
        "repeat tables and figures of the paper, a portion of time after the other",
        epilog=REPRODUCE_EXAMPLES,
    )
    reproduce.add_argument("names", nargs="*", metavar="NAME", help="experiments, or all (default: list them)")
    sweep = command("sweep", "run a grid of your own the same way, and choose on validation", epilog=SWEEP_EXAMPLES)
    sweep.add_argument("file", help="a TOML file with [all], [axes], [[rows]] and [search]")
    for each in (reproduce, sweep):
        add_portions(each)

    records = command("records", "write small records of an experiment's runs, which a report can be made from")
    records.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all that have a finished run)")
    records.add_argument("--data", dest="folder", metavar="DIR", help="folder where data sets are found by name")
    records.add_argument("--seeds", default="3", help="how many seeds, 0 and up (default 3)")
    records.add_argument("--to", default="results", metavar="DIR", help="where records go (default results)")
    add_keys(records, ["out", "cache"])

    listing = command("list", "list the runs in a folder")
    add_keys(listing, ["out"])
    show = command("show", "show one run: settings, result, and where its files are")
    show.add_argument("run", help="its folder, its id, or a part of the id")
    add_keys(show, ["out"])

    report = command("report", "draw one offline HTML page from runs, or from the records of experiments")
    report.add_argument(
        "runs",
        nargs="*",
        help="runs: folders of one or many, ids or parts of ids (default: all in --out); or a folder of records",
    )
    report.add_argument(
        "--to",
        default="report.html",
        help="the page to write (default report.html), or .md, .tex or .csv",
    )
    report.add_argument("--markdown", action="store_true", help="print the table as Markdown instead")
    report.add_argument("--readme", metavar="FILE", help="of records: put their picture and table into this page")
    add_keys(report, ["out"])

    features = command("features", "show where finished runs' models put test images: t-SNE, with the text anchors")
    features.add_argument("runs", nargs="+", help="folders, ids or parts of ids")
    features.add_argument(
        "--records",
        default="results",
        metavar="DIR",
        help="a folder whose record of the run is renewed (default results)",
    )
    add_keys(features, ["out", "cache", "device", "data_folder"])

    export = command("export", "write runs' curves for other programs to show")
    export.add_argument("runs", nargs="*", help="folders of one or many, ids or parts of ids (default: all in --out)")
    export.add_argument("--tensorboard", required=True, metavar="DIR", help="folder for TensorBoard's event files")
    add_keys(export, ["out"])

    predict = command("predict", "classify image files with a finished run's model", epilog=PREDICT_EXAMPLES)
    predict.add_argument("run", help="its folder, its id, or a part of the id")
    predict.add_argument("images", nargs="+", help="image files, or folders of them")
    predict.add_argument("--to", metavar="FILE.csv", help="write every class's probability there instead")
    add_keys(predict, ["out", "device"])

    concepts = command("concepts", "show how a language model sees a data set's classes, or save it")
    concepts.add_argument("file", nargs="?", help="a configuration file, whose [concepts] say what classes are called")
    concepts.add_argument("--save", help="write the distributions to this file (.safetensors)")
    add_keys(concepts, ["data", *names("language"), "seed", "cache"])
    concepts.add_argument("--ship", metavar="FOLDER", help="rebuild the package's own embeddings from MiniLM's folder")

    data = command("data", "list, get, prepare, inspect and partition data sets", epilog=DATA_EXAMPLES)
    add_data_tasks(data.add_subparsers(dest="task", metavar="TASK", parser_class=Parser))

    federation = command(
        "federation", "run the same methods between machines, over Flower", epilog=federation_arguments.EXAMPLES
    )
    tasks = federation.add_subparsers(dest="task", metavar="TASK", parser_class=Parser)
    federation_arguments.add_tasks(tasks, add_command)

    config = command("config", "print every setting: section, key, type, default and meaning")
    config.add_argument("--toml", action="store_true", help="print a complete configuration file instead")
    add_keys(config, ["method"])
    return parser


def add_command(commands: Any, name: str, help_: str, **more: Any) -> Parser:
    made: Parser = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **more,
    )
    made.set_defaults(parser=made)
    return made


def add_portions(command: Parser) -> None:
    """What reproduce and sweep have in common: which runs, where the data are, for how long."""
    command.add_argument("--data", dest="folder", metavar="DIR", help="folder where data sets are found by name")
    command.add_argument("--seeds", default="3", help="how many seeds, 0 and up (default 3)")
    command.add_argument("--budget", metavar="TIME", help="stop after this time, such as 25m or 1h30m")
    command.add_argument(
        "--only", action="append", default=[], metavar="WHAT", help="rows by name, or axis=value,…; may be repeated"
    )
    command.add_argument("--records", default="results", metavar="DIR", help="where records go (default results)")
    command.add_argument("--plan", action="store_true", help="say what there is and what it would take; run nothing")
    add_keys(command, names("engine", without=["data_folder"]))


def add_data_tasks(tasks: Any) -> None:
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


def with_task(words: Sequence[str]) -> list[str]:
    """'data PATH' is short for 'data partition PATH', 'data' for 'data list'; 'federation' alone asks for help."""
    words = list(words)
    if words[:1] == ["federation"]:
        known = (*federation_arguments.TASKS, "-h", "--help")
        if len(words) > 1 and words[1] not in known:
            near = did_you_mean(words[1], federation_arguments.TASKS)
            raise FedBMError(f'fedbm federation has no task "{words[1]}"{near}; try fedbm federation --help')
        return words if len(words) > 1 else [*words, "--help"]
    if words[:1] != ["data"] or words[1:2] in ([task] for task in (*DATA_TASKS, "-h", "--help")):
        return words
    if len(words) == 1:
        return ["data", "list"]
    near = did_you_mean(words[1], DATA_TASKS)
    if near and words[1] not in CATALOG and not os.path.exists(words[1]):
        raise FedBMError(f'"{words[1]}" is neither a data set nor a task of fedbm data{near}; try fedbm data --help')
    return ["data", "partition", *words[1:]]


def names(section: str, without: Iterable[str] = ()) -> list[str]:
    return [key.flag for key in keys() if key.section == section and key.flag not in without]


def add_keys(parser: argparse.ArgumentParser, flags: Sequence[str] | None = None) -> None:
    """Flags for these keys (all by default), grouped by section; absent unless given."""
    groups: dict[str, Any] = {}
    for key in keys():
        if flags is not None and key.flag not in flags:
            continue
        title = key.section if key.name == "name" or not key.methods else f"options of {', '.join(key.methods)}"
        group = groups.setdefault(title, parser.add_argument_group(title))
        optional: dict[str, Any] = {"nargs": "?", "const": "yes"} if key.type == "yes or no" else {}
        group.add_argument(
            key.switch,
            dest=key.flag,
            default=argparse.SUPPRESS,
            metavar=metavar(key),
            help=help_text(key),
            **optional,
        )


def metavar(key: Key) -> str:
    return {"whole number": "N", "number": "X", "yes or no": "yes|no", "text": "TEXT"}.get(
        key.type, key.type.replace(" ", "")
    )


def help_text(key: Key) -> str:
    default = default_words(key)
    return (f"{key.meaning} (default {default})" if default else key.meaning).replace("%", "%%")


def default_words(key: Key) -> str:
    """The default as it would be typed; '' where there is none."""
    if isinstance(key.default, bool):
        return "yes" if key.default else "no"
    return "" if key.default is None else str(key.default)


def given_keys(found: argparse.Namespace) -> dict[str, Any]:
    """The configuration flags the user gave."""
    flags = {key.flag for key in keys()}
    return {flag: value for flag, value in vars(found).items() if flag in flags}


def check_beta(flag: str, config: Config) -> None:
    """β on the command line must matter; in a file it may stand idle, since a complete file gives every key."""
    if config.data.partition not in BY_BETA:
        kinds = " or ".join(BY_BETA)
        partition = config.data.partition
        own = "" if "data.partition" in config.given else f", by which {config.data.name} is dealt by default"
        raise FedBMError(f"{flag} matters for partition = {kinds} only, not for {partition}{own}: leave it out")
