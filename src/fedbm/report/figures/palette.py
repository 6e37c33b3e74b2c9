"""names → numbers → a colour and a dash: no two names of one figure look alike, and a method looks the same in all."""

from __future__ import annotations

from collections.abc import Iterable

from fedbm.report.figures.svg import SERIES
from fedbm.report.grouping import NAMES

# FedBM has the first colour to itself, Central the grey; the methods that begin the palette again are dashed.
_FIRST = ("fedbm", "fedavg", "fedprox", "feddyn", "scaffold", "fedrep", "central")
_AGAIN = ("fedrod", "fednh", "fedproto", "fedetf")
METHODS = {NAMES[name]: number for number, name in enumerate(_FIRST)}
METHODS |= {NAMES[name]: number for number, name in enumerate(_AGAIN, len(SERIES) + 1)}


def numbers_of(names: Iterable[str]) -> dict[str, int]:
    """The methods have their own numbers; variants, in the order given, the lowest that are left.

    >>> numbers_of(["w/o LKCC", "FedAvg", "FedBM", "w/o CGDE"])
    {'w/o LKCC': 2, 'FedAvg': 1, 'FedBM': 0, 'w/o CGDE': 3}
    """
    wanted = list(dict.fromkeys(names))
    taken = {METHODS[name] for name in wanted if name in METHODS} | {METHODS[NAMES["fedbm"]]}
    free = (number for number in range(len(wanted) + len(taken)) if number not in taken)
    return {name: METHODS[name] if name in METHODS else next(free) for name in wanted}


def dashes(number: int) -> tuple[int, ...]:
    """Solid for the first colours; each time the palette begins again, another pattern.

    >>> [dashes(7 * again) for again in range(5)]
    [(), (7, 2), (2, 2), (7, 2, 2, 2), (7, 2, 2, 2, 2, 2)]
    """
    again = number // len(SERIES)
    if again < 3:
        return ((), (7, 2), (2, 2))[again]
    return (7, 2, *(2, 2) * (again - 2))


def dotted(number: int) -> tuple[float, float]:
    """Dots of an averaged model's curve, further apart each time the palette begins again.

    >>> [dotted(7 * again) for again in range(3)]
    [(1.0, 1.2), (1.0, 2.7), (1.0, 4.2)]
    """
    return 1.0, round(1.2 + 1.5 * (number // len(SERIES)), 1)
