"""fedbm COMMAND …: exit status 0 done, 2 bad input (one sentence on standard error), 130 interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fedbm.cli.lacking import lacking
from fedbm.errors import FedBMError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; never a traceback for what a user can mend.

    --help and --version raise SystemExit, as argparse does.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            from fedbm.cli.commands import COMMANDS, understood
            from fedbm.cli.output import Output

            console = Output()
            found = understood(words)
            COMMANDS[found.command](found, console)
        finally:
            sys.stdout.flush()  # at exit it would be too late to be quiet about a broken pipe
    except FedBMError as error:
        return mistaken(str(error))
    except KeyboardInterrupt:
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
    return "fedbm: interrupted" + (
        "; run the same command again to continue from the last checkpoint" if resumes else ""
    )
