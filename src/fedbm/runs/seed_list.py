"""Parse seeds: "3" means 0, 1 and 2; "3-12" means 3 to 12; "0,1,5" means these three."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

from fedbm.config.options import MAX_SEED
from fedbm.errors import FedBMError

MAX_SEEDS = 99
DEFAULT = (0, 1, 2)


def parse_seeds(seeds: int | str | Iterable[int], where: str = "seeds") -> tuple[int, ...]:
    """Return seeds in ascending order, from a text or from a number or list of a Python call.

    A bare number N means the first N seeds, 0 to N − 1. An error message starts with *where*.

    >>> parse_seeds("3"), parse_seeds("3-5"), parse_seeds("0,1,5"), parse_seeds([5, 0]), parse_seeds([7])
    ((0, 1, 2), (3, 4, 5), (0, 1, 5), (0, 5), (7,))
    """
    if not isinstance(seeds, Iterable):  # a number, also one of NumPy
        seeds = str(seeds)
    words = seeds.split(",") if isinstance(seeds, str) else [str(seed) for seed in seeds]
    text = ",".join(words)
    if isinstance(seeds, str) and re.fullmatch("[1-9][0-9]?", text):
        return tuple(range(int(text)))
    is_list = not isinstance(seeds, str) or "," in text or "-" in text
    parts = [re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", word) for word in words]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    named = list(chain(*ranges)) if sum(map(len, ranges)) <= MAX_SEEDS else []
    is_valid = is_list and None not in parts and all(ranges) and 0 < len(named) == len(set(named))
    if not is_valid or max(named) > MAX_SEED:
        raise FedBMError(
            f"{where} must be a count from 1 to {MAX_SEEDS}, a range such as 3-12 or a list of up to {MAX_SEEDS} "
            f'different seeds such as 0,1,5, each at most {MAX_SEED}, not "{text}"'
        )
    return tuple(sorted(named))
