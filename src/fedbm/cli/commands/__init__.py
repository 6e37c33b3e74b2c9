"""One module per command, with its help, its arguments and its action.

Each module has HELP (one line), EXAMPLES (shown below the flags, or None), add_arguments(parser) and
execute(args, console). `expand(words)`, if there is one, completes a short form of the command. Modules import what is
slow to import in execute(), so that --help stays fast.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

COMMANDS = (
    "demo",
    "run",
    "compare",
    "reproduce",
    "sweep",
    "list",
    "show",
    "report",
    "features",
    "export",
    "predict",
    "concepts",
    "data",
    "federation",
    "config",
)


def load_command(name: str) -> ModuleType:
    """Import a command's module."""
    return import_module(f"{__name__}.{name}")
