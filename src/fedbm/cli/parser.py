"""An argument parser that reports each mistake in one sentence."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from fedbm.errors import FedBMError, did_you_mean


class Parser(argparse.ArgumentParser):
    """Raise FedBMError for a mistake, and suggest the closest known word."""

    scope = "all"  # what flags.add_all_settings adds: "all", "common", or those of "sections" other than [method]

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        self._negative_number_matcher = re.compile(r"-[\d.]")  # a value like -1000,400 is not a flag either

    def error(self, message: str) -> NoReturn:
        raise FedBMError(f"{message}. See '{self.prog} --help'.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = str(action.metavar or action.dest).lower()
            self.error(f'there is no {kind} "{value}"{did_you_mean(value, action.choices)}')

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a command; raise FedBMError if a word is unknown."""
        args, unknown = self.parse_known_args(words)
        if unknown:
            command: Parser = getattr(args, "parser", self)
            word = unknown[0].partition("=")[0]
            near = did_you_mean(word, command._option_string_actions)
            command.error(f"{command.prog.removeprefix('fedbm ')} has no argument {word}{near}")
        return args


def add_command(commands: Any, name: str, help_: str, examples: str = "") -> Parser:
    """Add a command, or a task of a command, to argparse's subparsers. Its help shows the examples first."""
    description = f"{help_[:1].upper()}{help_[1:]}.\n\n{examples}".rstrip()
    made: Parser = commands.add_parser(name, help=help_, description=description)
    made.set_defaults(parser=made, settings={}, json=False)  # settings: see flags.StoreSetting
    return made
