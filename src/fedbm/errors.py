"""One family of errors for what a user can mend: what is wrong, where, what to do, in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedBMError(Exception):
    """A mistake of input or surroundings. The command line prints its sentence and exits with 2."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean "x"?)' for the nearest known word, or '' when none is near.

    >>> did_you_mean("ruonds", ["rounds", "seed"])
    ' (did you mean "rounds"?)'
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{near[0]}"?)' if near else ""


def listed(words: Iterable[str], joined: str = "or") -> str:
    """'a, b or c', for sentences that name the choices; by "and" for those that need all."""
    *head, last = list(words)
    return f"{', '.join(head)} {joined} {last}" if head else last
