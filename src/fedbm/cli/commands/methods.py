"""fedbm methods: list the installed methods, bodies and readers, or the options of one method.

examples:
  fedbm methods                                               this package's, and plug-ins of other packages
  fedbm methods fedprox                                       the options of a method, which are flags of 'fedbm run'
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from fedbm.cli.flags import add_json
from fedbm.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a method")
    add_json(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    from fedbm.cli.console_tables import settings_table, table
    from fedbm.config.keys import keys_of
    from fedbm.data.readers.dispatch import reader_plugins
    from fedbm.methods import METHODS, method_plugins
    from fedbm.models.backbone import body_plugins
    from fedbm.runs.run_config import find_method
    from fedbm.utils.plugins import usable
    from fedbm.version import __version__

    if args.name:
        method = find_method(args.name)
        options = list(keys_of("method", method))
        if args.json:
            print_json([vars(key) | {"flag": key.switch} for key in options])
        console.print(first_line(method))
        console.print(settings_table("method", options))
        return
    own = f"fedbm {__version__}"
    plugins = {"methods": method_plugins(), "bodies": body_plugins(), "readers": reader_plugins()}
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, known in plugins.items():
        parts = [(name, own, one) for name, one in METHODS.items()] if kind == "methods" else []
        parts += [(name, known[name].package, one) for name, one in usable(known).items()]
        found[kind] = [{"name": name, "package": package, "meaning": first_line(one)} for name, package, one in parts]
    for row in found["methods"]:
        row["options"] = [key.name for key in keys_of("method", find_method(row["name"]))]
    problems = [plugin.problem for known in plugins.values() for plugin in known.values() if plugin.problem]
    if args.json:
        print_json({**found, "problems": problems})
    for kind, rows in found.items():
        if rows:
            console.print(table("", (kind, "package", "meaning"), [list(row.values())[:3] for row in rows], 3))
    for problem in problems:
        console.print(f"problem: {problem}")


def first_line(value: object) -> str:
    """Return the first line of a docstring."""
    return (value.__doc__ or "").strip().partition("\n")[0]
