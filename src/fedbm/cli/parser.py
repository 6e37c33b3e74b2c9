"""An argument parser whose mistakes are one sentence each, and the short forms of `fedbm data` and `federation`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from fedbm.cli import federation_arguments
from fedbm.data.catalog.lookup import CATALOG
from fedbm.errors import FedBMError, did_you_mean

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
