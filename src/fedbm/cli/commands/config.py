"""fedbm config: print every setting with its flag, default and meaning.

examples:
  fedbm config                                                all settings, as a table
  fedbm config --toml --method fedprox > experiment.toml      then: fedbm run experiment.toml
"""

from __future__ import annotations

import argparse
from itertools import groupby
from operator import attrgetter

from rich.console import Console

from fedbm.cli.flags import add_json
from fedbm.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--toml", action="store_true", help="print a complete configuration file instead")
    add_json(formats)
    parser.add_argument("--method", default="fedbm", help="the method of that file (default fedbm)")


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import settings_table
    from fedbm.runs.run_config import find_method, keys, make_config, to_toml

    config = make_config({"method": {"name": find_method(args.method).name}})
    if args.toml:
        print(to_toml(config))
        return
    if args.json:
        print_json([vars(key) | {"flag": key.switch} for key in keys()])
        return
    for section, found in groupby(keys(), key=attrgetter("section")):
        console.print(settings_table(section, found))
