"""The command line: reads arguments, calls the package, shows what comes back. It holds no logic of its own."""

from fedbm.cli.main import main

__all__ = ["main"]
