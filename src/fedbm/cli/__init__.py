"""The command line: parse arguments, call the package, print the result. One module per command in `commands/`."""

from fedbm.cli.main import main

__all__ = ["main"]
