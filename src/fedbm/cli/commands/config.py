"""fedbm config: print every setting: section, key, type, default and meaning.

examples:
  fedbm config                                                all settings, as a table
  fedbm config --toml --method fedprox > experiment.toml      then: fedbm run experiment.toml
"""

from __future__ import annotations

import argparse

from rich.console import Console

from fedbm.cli.flags import add_json, format_default
from fedbm.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--toml", action="store_true", help="print a complete configuration file instead")
    add_json(formats)
    parser.add_argument("--method", default="fedbm", help="the method of that file (default fedbm)")


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import table
    from fedbm.runs.run_config import find_method, keys, make_config, to_toml

    config = make_config({"method": {"name": find_method(args.method).name}})
    if args.toml:
        print(to_toml(config))
        return
    if args.json:
        print_json([vars(key) | {"flag": key.switch} for key in keys()])
        return
    rows = []
    for key in keys():
        methods = f" [{', '.join(key.methods)}]" if key.is_option else ""
        default = format_default(key) or "not set"
        rows.append((key.section, key.name, key.switch, key.type, default, key.meaning + methods))
    console.print(table("", ("section", "key", "flag", "type", "default", "meaning"), rows, text_columns=6))
