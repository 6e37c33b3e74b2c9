"""fedbm config: print every setting."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedbm.cli.parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

HELP = "print every setting: section, key, type, default and meaning"
EXAMPLES = """examples:
  fedbm config --toml --method fedprox > experiment.toml      then: fedbm run experiment.toml
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--toml", action="store_true", help="print a complete configuration file instead")
    parser.add_argument("--method", default="fedbm", help="the method of that file (default fedbm)")


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.tables import config_table
    from fedbm.runs.config import find_method, make_config, to_toml

    config = make_config({"method": {"name": find_method(args.method).name}})
    if args.toml:
        print(to_toml(config))
    else:
        console.print(config_table())
