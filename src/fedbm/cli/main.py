"""fedbm COMMAND …: exit status 0 done, 2 failed (one sentence on standard error), 130 interrupted."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from traceback import walk_tb

from fedbm.cli.commands import COMMANDS, load_command
from fedbm.cli.parser import Parser, add_command
from fedbm.errors import FedBMError
from fedbm.version import __version__

RESUMABLE = (["run"], ["compare"], ["demo"], ["reproduce"], ["sweep"], ["federation", "up"])
INSTALL = "Install FedBM with its dependencies: pip install fedbm. 'fedbm doctor' lists what is missing."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the words of the command line, and return its exit status.

    A mistake that the user can correct prints one sentence and no traceback. --help and --version raise SystemExit, as
    argparse does.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed before the start, as by some services
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
    try:
        try:
            from fedbm.cli.output import Output

            console = Output()
            args = parse(words)
            console.quiet = args.json  # only print_json() writes to standard output
            load_command(args.command).execute(args, console)
        finally:
            sys.stdout.flush()  # at exit it would be too late to ignore a broken pipe
    except FedBMError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        hint = "; run the same command again to continue from the last checkpoint"
        is_resumable = any(words[: len(command)] == command for command in RESUMABLE)
        print(f"fedbm: interrupted{hint if is_resumable else ''}", file=sys.stderr)
        return 130
    except PermissionError as error:
        return _fail(f"cannot read or write {error.filename}: permission denied. Use the account that owns it")
    except BrokenPipeError:  # the reader of the output is gone, as with `| head`
        _discard_output()
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            _discard_output()
            return _fail(f"cannot write the output of the command: {error.strerror}. Free some space")
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and error.filename:
            return _fail(f"{error.filename} is too long for the name of a file or folder")
        if not (sentence := explain_missing(error)):
            raise
        return _fail(sentence)
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command; without words, it is --help."""
    name = words[0] if words else "--help"
    if name.startswith("-") and name not in ("-h", "--help", "--version"):
        raise FedBMError(f"the first word must be a command, such as run, not {name}. See 'fedbm --help'.")
    is_help = not {"-h", "--help"}.isdisjoint(words)
    if not is_help:
        with suppress(ImportError):  # 'fedbm doctor' reports it
            import numpy  # noqa: F401 (before PyTorch, which imports it too, but would swallow Ctrl-C meanwhile)
    expand = getattr(load_command(name), "expand", list) if name in COMMANDS else list
    return make_parser(name, is_help).parse(expand(words) or ["--help"])


def make_parser(only: str | None = None, is_help: bool = False) -> Parser:
    """Return the parser of all commands; *only* the named command gets its arguments.

    The flags of methods need PyTorch. They are left out in the help, and in a parser of all commands.
    """
    parser = Parser(
        prog="fedbm",
        description="Train image classifiers across hospitals that cannot share data and see different diseases.",
        epilog="New here? 'fedbm demo' trains two methods on real digits in under two minutes and draws a report.\n"
        "'fedbm COMMAND --help' explains a command with examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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


def explain_missing(error: Exception) -> str:
    """Return a sentence if a package is not installed or PyTorch cannot be imported; "" for other errors."""
    name = (error.name or "" if isinstance(error, ModuleNotFoundError) else "").partition(".")[0]
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    packages = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    if not name and "torch" not in sys.modules and "torch" in packages:
        name = "torch"  # its libraries may raise any error; a failed import leaves no module in sys.modules
    if name in ("", "fedbm"):
        return ""
    return f"{'PyTorch' if name == 'torch' else name} cannot be imported ({error}). {INSTALL}"


def _discard_output() -> None:
    """Send the rest of standard output nowhere, so that Python does not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> int:
    """Print the sentence on one line and return the exit status."""
    print("fedbm:", " ".join(sentence.splitlines()), file=sys.stderr)
    return 2
