"""Standard output as the commands use it."""

from __future__ import annotations

import io
import sys

from rich.console import Console


class Output(Console):
    """Prints text as it is: the names of files and classes may look like anything, markup and colons included."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without β shows "?"
        super().__init__(markup=False, emoji=False, highlight=False)
        if not self.is_terminal:  # lines are as long as they need to be
            self.width, self.soft_wrap = 1000, True

    def on_broken_pipe(self) -> None:
        """The reader has left, as `| head` does: main() ends quietly, where rich would exit with 1."""
        raise BrokenPipeError
