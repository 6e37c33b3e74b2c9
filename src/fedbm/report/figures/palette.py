"""Assign colours, dash patterns and marks to names, so that no two names of a figure look the same."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from fedbm.methods import METHODS
from fedbm.report.figures.svg import SERIES

STATED = {"FedBM": 0, "Central": 6}  # places in the palette that are kept for a method
ORDER = [method.title for method in METHODS.values()]
SHAPES = "osD"  # circle, square, diamond


def assign_colours(names: Iterable[str]) -> dict[str, int]:
    """Return a number for every name: the one of STATED, else the next free one.

    Methods come before their variants, in the order of METHODS.

    >>> assign_colours(["w/o LKCC", "FedAvg", "FedBM", "w/o CGDE"])
    {'w/o LKCC': 2, 'FedAvg': 1, 'FedBM': 0, 'w/o CGDE': 3}
    """
    wanted = list(dict.fromkeys(names))
    free = (number for number in count() if number % len(SERIES) not in STATED.values())
    ordered = sorted(wanted, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    numbers = {name: STATED[name] if name in STATED else next(free) for name in ordered}
    return {name: numbers[name] for name in wanted}


def dash_pattern(number: int) -> tuple[int, ...]:
    """Return the dash pattern of a number: solid for the first colours, another each time the palette repeats.

    >>> [dash_pattern(7 * again) for again in range(5)]
    [(), (7, 2), (2, 2), (7, 2, 2, 2), (7, 2, 2, 2, 2, 2)]
    """
    again = number // len(SERIES)
    return ((), (7, 2), (2, 2))[again] if again < 3 else (7, 2, *(2, 2) * (again - 2))


def mark_shape(number: int) -> tuple[str, bool]:
    """Return the shape of a number's marks and whether they are hollow: another pair each time the palette repeats.

    >>> [mark_shape(7 * again) for again in range(4)]
    [('o', False), ('o', True), ('s', False), ('s', True)]
    """
    again = number // len(SERIES)
    return SHAPES[again // 2 % len(SHAPES)], again % 2 == 1
