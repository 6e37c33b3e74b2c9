"""The commands: each reads what was asked for, calls the package and shows what comes back."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedbm.cli.arguments import make_parser
from fedbm.cli.flags import check_concepts_matter, check_matters, given_keys
from fedbm.errors import FedBMError, did_you_mean

if TYPE_CHECKING:
    from fedbm.runs.config import Config


def understood(words: Sequence[str]) -> argparse.Namespace:
    """What is asked for; nothing at all asks for help."""
    command = next((word for word in words if not word.startswith("-")), "")
    if words and words[0] not in COMMANDS and not words[0].startswith("-"):
        raise FedBMError(f'there is no command "{command}"{did_you_mean(command, COMMANDS)}; try fedbm --help')
    return make_parser(command).parse(words or ["--help"])


def run(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.live import decoding, showing
    from fedbm.cli.tables import client_names, partition_table, partition_words, result_table
    from fedbm.engine.run_folder import RunFolder
    from fedbm.runs.plan import make_plan
    from fedbm.runs.reader import check_resumable, read_run
    from fedbm.runs.runner import check_engine, run_path
    from fedbm.runs.runner import run as play

    config, flags = read_config(found), given_keys(found)
    check_matters(flags, config, recommended=False)
    check_concepts_matter(flags, [config.method])
    check_engine(config)
    with decoding(console) as progress:
        plan = make_plan(config, progress=progress)
    check_matters(flags, plan.config)  # once more: the data may recommend another partition
    path = run_path(plan)
    check_resumable(path)
    for note in plan.notes:
        console.print(f"note: {note}")
    counts = plan.partition.counts(plan.dataset.labels, len(plan.dataset.classes))
    if len(counts) <= 50:
        console.print(partition_table(counts, plan.dataset.classes, client_names(plan.partition)))
    for sentence in partition_words(plan.partition, counts):
        console.print(sentence)
    console.print(f"run: {path}", soft_wrap=True)
    if RunFolder(path).done:
        console.print("this run is finished; nothing to compute")
    else:
        with showing(console, plan.config.method.name, plan.config.train.rounds) as show:
            for event in play(plan):
                show(event)
    console.print(result_table([read_run(path)]))


def read_config(found: argparse.Namespace) -> Config:
    """The file's values, overridden by the flags'."""
    from fedbm.runs.config import make_config, nest, read_toml

    file = found.file
    if file and not file.endswith(".toml") and not Path(file).exists():
        raise FedBMError(f"there is no configuration file {file}; if it names data, say --data {file}")
    values = read_toml(Path(file)) if file else {}
    flags = given_keys(found)
    if "method" not in flags and "name" in values.get("method", {}):
        flags["method"] = values["method"]["name"]
    elif "method" in flags and flags["method"] != values.get("method", {}).get("name", flags["method"]):
        values["method"] = {}  # another method than the file's: the file's options are not its own
    for section, pairs in nest(flags).items():
        values[section] = {**values.get(section, {}), **pairs}
    return make_config(values, where=file or "the command")


def out_of(found: argparse.Namespace) -> Path:
    from fedbm.runs.config import make_config, nest

    return Path(make_config(nest(given_keys(found))).engine.out).expanduser()


def listing(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.listing import listing as show

    show(out_of(found), console)


def show(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.tables import partition_table, result_table
    from fedbm.report.privacy import client_losses
    from fedbm.runs.plan import find_run
    from fedbm.runs.reader import EDITED, read_run

    seen = read_run(find_run(out_of(found), found.run))
    console.print(Text(seen.id, style="bold"), soft_wrap=True)
    if command := (seen.environment or {}).get("command"):
        console.print(f"command: {command}", soft_wrap=True)
    console.print(seen.config_text)
    if seen.edited:
        console.print(f"config.toml {EDITED}\n", soft_wrap=True)
    if seen.client_partition:
        import numpy as np

        console.print(partition_table(np.array(seen.client_partition["counts"]), seen.client_partition["classes"]))
    if seen.finished:
        console.print(result_table([seen]))
        for sentence in client_losses(seen):
            console.print(f"privacy of {sentence}", soft_wrap=True)
    else:
        console.print(f"{seen.state}; the same command goes on with it", soft_wrap=True)
    for path in sorted(seen.path.glob("*")):
        if path.is_file() and path.name != "lock":
            console.print(f"{path}  {path.stat().st_size:,} bytes", soft_wrap=True)


def report(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.report import report as write

    write(found, console)


def features(found: argparse.Namespace, console: Console) -> None:
    from fedbm.runs.features import write_features
    from fedbm.runs.plan import find_run
    from fedbm.runs.reader import read_run, unedited
    from fedbm.runs.record import renew_record

    given = given_keys(found)
    for name in found.runs:
        folder = find_run(out_of(found), name)
        unedited(read_run(folder))  # its record would tell of settings that were not computed
        written = write_features(folder, {k: v for k, v in given.items() if k != "out"}, found.averaged)
        console.print(f"features: {written}; 'fedbm report {folder}' shows them", soft_wrap=True)
        record = renew_record(read_run(folder), Path(found.records))
        if record is not None:
            console.print(f"record: {record}; 'fedbm report {found.records}' shows them too", soft_wrap=True)
        else:
            console.print(
                f"no record of this run in {found.records}: 'fedbm records' writes records of experiments' runs",
                soft_wrap=True,
            )


def export(found: argparse.Namespace, console: Console) -> None:
    from fedbm.report.tensorboard import write_events
    from fedbm.runs.plan import find_runs
    from fedbm.runs.reader import read_runs

    out = out_of(found)
    chosen = find_runs(out, found.runs)
    if not chosen:
        raise FedBMError(f"there are no runs in {out} to export")
    for folder in write_events(read_runs(chosen), Path(found.tensorboard)):
        console.print(f"events: {folder}", soft_wrap=True)


def predict(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.predict import predict as play

    play(found, console)


def concepts(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.concepts import concepts as show

    show(found, console, read_config(found))


def data(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.data import data as play

    play(found, console)


def federation(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.federation import federation as play

    play(found, console)


def config(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.tables import config_table
    from fedbm.runs.config import make_config, nest, to_toml

    if found.toml:
        print(to_toml(make_config(nest(given_keys(found)))))
    else:
        console.print(config_table())


def compare(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.compare import compare as play

    play(found, console)


def reproduce(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.reproduce import reproduce as play

    play(found, console)


def sweep(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.reproduce import sweep as play

    play(found, console)


def records(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.reproduce import records as write

    write(found, console)


def demo(found: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.demo import demo as play

    play(found, console)


COMMANDS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "demo": demo,
    "run": run,
    "compare": compare,
    "reproduce": reproduce,
    "sweep": sweep,
    "records": records,
    "list": listing,
    "show": show,
    "report": report,
    "features": features,
    "export": export,
    "predict": predict,
    "concepts": concepts,
    "data": data,
    "federation": federation,
    "config": config,
}
