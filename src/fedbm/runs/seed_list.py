"""Parse seeds: "3" means 0, 1 and 2; "3-12" means 3 to 12; "0,1,5" means these three."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fedbm.errors import FedBMError

MAX_SEED = 98  # records contain seeds 0 to 98
DEFAULT = (0, 1, 2)


def parse_seeds(text: str, where: str = "--seeds") -> tuple[int, ...]:
    """Return the seeds that *text* names, in ascending order.

    A bare number N means the first N seeds, 0 to N − 1. Error messages start with *where*.

    >>> parse_seeds("3"), parse_seeds("3-5"), parse_seeds("0,1,5"), parse_seeds("7-7")
    ((0, 1, 2), (3, 4, 5), (0, 1, 5), (7,))
    """
    if re.fullmatch("[1-9][0-9]?", text):
        return tuple(range(int(text)))
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,2})(?:-([0-9]{1,2}))?\s*", part)
        if not found or ("," not in text and found[2] is None):
            raise FedBMError(
                f'{where} must be a count from 1 to 99, a range such as 3-12 or a list such as 0,1,5, not "{text}"'
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise FedBMError(f'{where}: the range "{part.strip()}" ends before it starts')
        seeds += range(first, last + 1)
    if (twice := next((seed for seed in seeds if seeds.count(seed) > 1), None)) is not None:
        raise FedBMError(f'{where}: seed {twice} is named twice in "{text}"')
    if max(seeds) > MAX_SEED:
        raise FedBMError(f"{where}: the largest seed is {MAX_SEED}, not {max(seeds)}")
    return tuple(sorted(seeds))


def list_seeds(seeds: int | str | Iterable[int]) -> tuple[int, ...]:
    """Return the seeds of a Python call: a count, a text that parse_seeds() reads, or the seeds themselves.

    >>> list_seeds(3), list_seeds("3-5"), list_seeds([5, 0])
    ((0, 1, 2), (3, 4, 5), (0, 5))
    """
    if isinstance(seeds, int | str):
        return parse_seeds(str(seeds), "seeds")
    words = [str(seed) for seed in seeds]
    return parse_seeds(",".join(words) if len(words) != 1 else f"{words[0]}-{words[0]}", "seeds")
