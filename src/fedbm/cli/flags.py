"""Command-line flags made from the configuration's keys. A flag's name, help and default match the key.

The options of methods need PyTorch, so the functions here import them only when they are called.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbm.cli.parser import Parser
from fedbm.config.keys import Key, section_keys
from fedbm.config.options import EngineOptions, check
from fedbm.errors import FedBMError
from fedbm.utils.text import format_option

if TYPE_CHECKING:
    from fedbm.runs.run_config import Config

COMMON = ("data", "size", "partition", "clients", "beta", "width", "rounds", "batch", "lr", "seed", "device", "out")
METAVARS = {"whole number": "N", "number": "X", "yes or no": "yes|no", "text": "TEXT"}


class StoreSetting(argparse.Action):
    """Add the value to `args.settings`, a dictionary of the settings that were given."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        namespace.settings = {**namespace.settings, self.dest: values}


def section_flags(section: str | None, without: Iterable[str] = ()) -> list[str]:
    """Return the flags of a section, or of all sections but [method]."""
    return [key.flag for key in section_keys() if section in (None, key.section) and key.flag not in without]


def add_settings(parser: argparse.ArgumentParser, flags: Sequence[str]) -> None:
    """Add the named flags of sections other than [method]."""
    _add_keys(parser, [key for key in section_keys() if key.flag in flags])


def add_all_settings(parser: Parser, section: str | None = None, without: Iterable[str] = ()) -> None:
    """Add the flags of a section; or of all sections, with the options of methods. The help lists only common ones."""
    flags = section_flags(section, without)
    add_settings(parser, [flag for flag in flags if flag in COMMON] if parser.scope == "common" else flags)
    if section:
        parser.epilog = f"All settings of [{section}] in 'fedbm config' are flags, too."
        return
    parser.epilog = "All settings in 'fedbm config' are flags, and so are a method's in 'fedbm methods NAME'."
    parser.usage = f"{parser.prog} [FILE.toml] [--KEY VALUE …]"
    if parser.scope == "all":
        import numpy  # noqa: F401 (PyTorch would swallow a Ctrl-C that interrupts its own import of NumPy)

        from fedbm.runs.run_config import keys

        _add_keys(parser, [key for key in keys() if key.is_option])


def add_setting(group: Any, flag: str, **more: Any) -> None:
    """Add one flag that sets a key of the configuration."""
    group.add_argument("--" + flag.replace("_", "-"), dest=flag, action=StoreSetting, default=argparse.SUPPRESS, **more)


def add_model_choice(parser: argparse.ArgumentParser) -> None:
    """Add --method, the class of a run by a method of the user's own, and --averaged, which chooses the model."""
    parser.add_argument("--method", metavar="FILE.py:CLASS", help="your own method, if the run was trained by one")
    parser.add_argument("--averaged", action="store_true", help="use the averaged model (server_average)")


def add_json(parser: Any, help_: str = "print a JSON document instead; docs/scripting.md lists its keys") -> None:
    """Add --json to a command that calls output.print_json()."""
    parser.add_argument("--json", action="store_true", help=help_)


def _add_keys(parser: argparse.ArgumentParser, keys: Iterable[Key]) -> None:
    for key in keys:
        text = key.meaning if key.default in (None, "") else f"{key.meaning} (default {format_option(key.default)})"
        optional: dict[str, Any] = {"nargs": "?", "const": "yes"} if key.type == "yes or no" else {}
        metavar = METAVARS.get(key.type, key.type.replace(" ", "").lstrip("|"))
        add_setting(parser, key.flag, metavar=metavar, help=text.replace("%", "%%"), **optional)


def read_config(args: argparse.Namespace) -> Config:
    """Return the configuration file's values, overridden by the flags."""
    from fedbm.runs.run_config import configure

    values = read_file(args.file) if args.file else {}
    in_file = values.get("method", {}).get("name", "fedbm")
    method = args.settings.get("method", in_file)
    if method != in_file:
        values["method"] = {}  # the file's options belong to another method
    return configure(method, args.settings, values, where=args.file or "the command")


def read_file(file: str) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration file."""
    from fedbm.runs.run_config import read_sections

    path = Path(file)
    if path.suffix != ".toml" and not path.is_file():
        advice = "Data sets and methods need a flag: --data, --method or --methods."
        raise FedBMError(f"there is no configuration file {file}. {advice}")
    return read_sections(path)


def check_ending(option: str, file: str | None, ending: str) -> None:
    """Raise FedBMError if a file to write has another ending. Otherwise a confused option could replace data."""
    if file and Path(file).suffix.lower() != ending:
        raise FedBMError(f"{option} needs a name that ends in {ending}, not {file}")


def runs_folder(args: argparse.Namespace) -> Path:
    """Return the folder of runs that --out names."""
    return Path(check(EngineOptions, "out", args.settings.get("out", EngineOptions.out))).expanduser()
