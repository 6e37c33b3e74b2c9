"""fedbm COMMAND …: exit status 0 done, 2 bad input (one sentence on standard error), 130 interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from fedbm.cli.interrupts import end_with, hear_no_more, on_interrupt, raise_after_imports
from fedbm.cli.lacking import lacking
from fedbm.errors import FedBMError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; never a traceback for what a user can mend.

    Called from Python, with *arguments*: signals stay the caller's, who learns of Ctrl-C by the 130 that is returned,
    as of bad input by the 2; no exception tells. --help and --version end as argparse has it, by SystemExit.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = None if arguments is None else nullcontext()  # called from Python, where Ctrl-C is the caller's
    try:
        try:
            with own or on_interrupt(end_with(interrupted(words))):
                from fedbm.cli.commands import COMMANDS, understood
                from fedbm.cli.output import Output

                console = Output()
                found = understood(words)
            with own or on_interrupt(raise_after_imports):
                COMMANDS[found.command](found, console)
        finally:
            sys.stdout.flush()  # at exit it would be too late to be quiet about a broken pipe
    except FedBMError as error:
        return mistaken(str(error))
    except KeyboardInterrupt:
        if own is None:
            hear_no_more()
        print(interrupted(words), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if not (sentence := lacking(error)):
            raise
        return mistaken(sentence)
    return 0


def mistaken(sentence: str) -> int:
    """Say it in one line; the exit status."""
    print("fedbm:", " ".join(sentence.splitlines()), file=sys.stderr)
    return 2


def interrupted(words: Sequence[str]) -> str:
    resumes = words[:1] in (["run"], ["compare"], ["demo"], ["reproduce"], ["sweep"])
    resumes |= words[:2] == ["federation", "up"]
    return "fedbm: interrupted" + ("; the same command goes on from the last checkpoint" if resumes else "")
