"""fedbm COMMAND …: exit status 0 done, 2 failed (one sentence on standard error), 130 interrupted."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from fedbm.cli.commands import COMMANDS, load_command
from fedbm.cli.parser import Parser, add_command
from fedbm.errors import FedBMError
from fedbm.version import __version__

INSTALL = "Install FedBM with its dependencies: pip install fedbm. 'fedbm doctor' lists what is missing."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the words of the command line, and return its exit status.

    A mistake that the user can correct prints one sentence and no traceback. --help and --version raise SystemExit, as
    argparse does.
    """
    try:
        try:
            from fedbm.cli.output import Output

            console = Output()
            args = parse(list(sys.argv[1:] if arguments is None else arguments))
            console.quiet = args.json  # only print_json() writes to standard output
            load_command(args.command).execute(args, console)
        finally:
            print(end="", flush=True)  # at exit it would be too late to ignore a broken pipe; stdout may be closed
        return 0
    except FedBMError as error:
        sentence = str(error)
    except KeyboardInterrupt:
        print("fedbm: interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output is gone, as with `| head`
        _discard_output()
        return 0
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "fedbm":
            raise
        sentence = f"{error}. {INSTALL}"
    except OSError as error:
        if error.errno and not error.filename:  # standard output is full
            _discard_output()
        sentence = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    print("fedbm:", " ".join(sentence.splitlines()), file=sys.stderr)
    return 2


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command; without words, it is --help."""
    name = words[0] if words else "--help"
    expand = getattr(load_command(name), "expand", list) if name in COMMANDS else list
    return make_parser(name, not {"-h", "--help"}.isdisjoint(words)).parse(expand(words) or ["--help"])


def make_parser(only: str | None = None, is_help: bool = False) -> Parser:
    """Return the parser of all commands; *only* the named command gets its arguments.

    The flags of methods need PyTorch. They are left out in the help, and in a parser of all commands.
    """
    parser = Parser(
        prog="fedbm",
        description="Train image classifiers across hospitals that cannot share data and see different diseases.",
        epilog="New here? 'fedbm demo' trains two methods on real digits in under two minutes and draws a report.\n"
        "'fedbm COMMAND --help' explains a command with examples.",
    )
    parser.add_argument("--version", action="version", version=f"fedbm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        module = load_command(name)
        summary, _, examples = (module.__doc__ or "").partition("\n\n")
        made = add_command(commands, name, summary.removeprefix(f"fedbm {name}: ").rstrip("."), examples)
        made.scope = "common" if is_help else "all" if only else "sections"
        if only in (None, name):
            module.add_arguments(made)
    return parser


def _discard_output() -> None:
    """Send the rest of standard output nowhere, so that Python does not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
