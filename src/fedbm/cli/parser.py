"""An argument parser that reports each mistake in one sentence."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from fedbm.errors import FedBMError, did_you_mean, join_words

MAX_CHOICES_LISTED = 4  # more are left to --help


class Parser(argparse.ArgumentParser):
    """Raise FedBMError for a mistake, and suggest the closest known word."""

    scope = "all"  # what flags.add_all_settings adds: "all", "common", or those of "sections" other than [method]

    def error(self, message: str) -> NoReturn:
        raise FedBMError(f"{message}. See '{self.prog} --help'.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = str(action.metavar or action.dest).lower()
            start = f"{self.prog.removeprefix('fedbm ')} has" if " " in self.prog else "there is"
            choices = list(action.choices)
            hint = did_you_mean(value, choices)
            few = "" if hint or len(choices) > MAX_CHOICES_LISTED else f"; choose {join_words(choices)}"
            self.error(f'{start} no {kind} "{value}"{hint}{few}')

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a command; raise FedBMError if a word is unknown."""
        joined: list[str] = []
        for word in words:  # argparse mistakes a value like -1000,400 for a flag, unless an equals sign joins them
            if re.match(r"-[\d.]+,", word) and joined and joined[-1].startswith("--"):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        args, unknown = self.parse_known_args(joined)
        if unknown:
            command: Parser = getattr(args, "parser", self)
            flags = [flag for action in command._actions for flag in action.option_strings]
            word = unknown[0].partition("=")[0]
            what = f"has no option {word}{did_you_mean(word, flags)}"
            what = what if word.startswith("-") else f"takes no further argument: {word}"
            command.error(f"{command.prog.removeprefix('fedbm ')} {what}")  # the message begins with fedbm
        return args


def add_command(commands: Any, name: str, help_: str, examples: str = "") -> Parser:
    """Add a command, or a task of a command, to argparse's subparsers. Its help shows the examples first."""
    made: Parser = commands.add_parser(
        name,
        help=help_,
        description=f"{help_[:1].upper()}{help_[1:]}.\n\n{examples}".rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.set_defaults(parser=made, settings={}, json=False)  # settings: see flags.StoreSetting
    return made
