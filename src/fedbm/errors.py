"""The package's error type, and helpers that word its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class FedBMError(Exception):
    """An error that the user can fix. The message says what is wrong, where, and what to do.

    The command line prints the message without a traceback and exits with status 2.

    Example:
        >>> import fedbm
        >>> fedbm.load("digitz")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedbm.errors.FedBMError: ... no data set is called "digitz" (did you mean "digits"?); ...
    """


class DivergenceError(FedBMError):
    """Training cannot continue, because an update or the model is not finite."""


@contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Put *where* in front of every FedBMError that is raised within."""
    try:
        yield
    except FedBMError as error:
        raise FedBMError(f"{where}: {error}") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' (did you mean "x"?)' for the closest known word in any case, or '' if none is close.

    Of several close words, one with the same letters is preferred.

    >>> did_you_mean("ruonds", ["rounds", "seed"]), did_you_mean("fedmb", ["fedbn", "fedbm"])
    (' (did you mean "rounds"?)', ' (did you mean "fedbm"?)')
    """
    spelt = {each.casefold().lstrip("-"): each for each in known}  # the dashes of two flags do not make them close
    typed = word.casefold().lstrip("-")
    matches = difflib.get_close_matches(typed, list(spelt), n=3, cutoff=0.6)
    matches.sort(key=lambda match: sorted(match) != sorted(typed))
    return f' (did you mean "{spelt[matches[0]]}"?)' if matches else ""


def join_words(words: Iterable[str], conjunction: str = "or") -> str:
    """Join words into a phrase.

    >>> join_words(["train", "val", "test"])
    'train, val or test'
    """
    *head, last = words
    return f"{', '.join(head)} {conjunction} {last}" if head else last


def shorten_list(words: Sequence[str], limit: int) -> str:
    """Join the first *limit* words and count the rest.

    >>> shorten_list(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {more} more" if more > 0 else "")
