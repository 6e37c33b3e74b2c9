"""fedbm show: show one run: result, clients, settings that are not the default, and where its files are.

examples:
  fedbm show fedbm-digits-s0                                  a part of the run's id is enough
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from fedbm.cli.flags import add_json, add_settings, runs_folder
from fedbm.cli.output import print_json

if TYPE_CHECKING:
    from fedbm.runs.run_view import RunView


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run: its folder, its id, or a part of the id")
    add_settings(parser, ["out"])
    add_json(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    import numpy as np

    from fedbm.cli.console_tables import partition_table, result_table, run_facts
    from fedbm.engine.run_folder import find_run
    from fedbm.report.privacy_sentences import client_losses
    from fedbm.runs.run_view import EDITED, read_run

    run = read_run(find_run(runs_folder(args), args.run))
    command = (run.environment or {}).get("command")
    files = [
        {"path": str(path), "bytes": path.stat().st_size}
        for path in sorted(run.path.glob("*"))
        if path.is_file() and path.name != "lock"
    ]
    if args.json:
        more = {"command": command, "config": run.config, "summary": run.summary, "files": files}
        print_json({**run_facts(run.path), **more})
        return
    console.print(f"{run.id}: {run.state}")
    console.print(f"command: {command or 'unknown'}")
    if run.edited:
        console.print(f"config.toml {EDITED}\n")
    if run.finished:
        console.print(result_table([run]))
    else:
        console.print("The same command continues it.")
    for sentence in client_losses(run):
        console.print(f"privacy of {sentence}")
    if run.client_partition:
        console.print(partition_table(np.array(run.client_partition.counts), run.client_partition.classes))
    console.print("settings that are not the default:")
    for line in changed_settings(run):
        console.print(f"  {line}")
    console.print("files:")
    for file in files:
        console.print(f"  {file['path']}  {file['bytes']:,} bytes")


def changed_settings(run: RunView) -> Iterator[str]:
    """Yield a line per section with the settings that are not the default. Of an unknown method, all are shown."""
    from fedbm.report.grouping import default_settings

    usual = default_settings(run.method, list(run.config))
    for section, values in run.config.items():
        changed = {name: value for name, value in values.items() if value != usual.get(f"{section}.{name}")}
        if changed:
            words = [f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in changed.items()]
            yield f"[{section}] {', '.join(words)}"
