"""Standard output of the commands."""

from __future__ import annotations

import io
import json
import sys
from textwrap import TextWrapper
from typing import Any

from rich.console import Console

from fedbm.errors import FedBMError


def print_json(value: Any) -> None:
    """Print a JSON document in ASCII, so that every terminal can show it; raise FedBMError for NaN or infinity."""
    try:
        text = json.dumps(value, indent=1, allow_nan=False, default=dict)  # dict: records are mappings
    except ValueError as error:
        raise FedBMError("a value is NaN or infinite, which JSON cannot contain. Leave out --json.") from error
    print(text)


class Output(Console):
    """Print text without markup or emoji, because names of files and classes may look like them."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without β shows "?"
        super().__init__(markup=False, emoji=False, highlight=False)
        if not self.is_terminal:  # a file gets lines of any length
            self.width, self.soft_wrap = 1000, True

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; in a terminal, wrap text between words only, so that a long path can be copied."""
        if self.is_terminal and all(isinstance(each, str) for each in objects):
            wrapper = TextWrapper(self.width, expand_tabs=False, break_long_words=False, break_on_hyphens=False)
            objects = tuple(wrapper.fill(line) for text in objects for line in text.split("\n"))
            options |= {"sep": "\n", "soft_wrap": True}
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Raise, so that main() ends quietly if the reader is gone; rich would exit with status 1."""
        raise BrokenPipeError
