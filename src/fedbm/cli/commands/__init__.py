"""One module per command, with its help, its arguments and its action.

The docstring of a module is the help of its command: one line, then examples. add_arguments(parser) adds the arguments
and execute(args, console) does the work. An optional expand(words) completes a short form of the command. execute()
imports what is slow to import, so that --help is fast.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

COMMANDS = (
    *("demo", "run", "compare", "reproduce", "sweep"),
    *("list", "show", "report", "features", "export", "predict"),
    *("methods", "concepts", "data", "federation", "config", "doctor", "completion"),
)


def load_command(name: str) -> ModuleType:
    """Import a command's module."""
    return import_module(f"{__name__}.{name}")
