"""mean = Σx/n,  std = √(Σ(x − mean)²/(n − 1)),  over seeds. One seed has no std."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    mean: float
    std: float | None  # None for n = 1: one value shows no spread
    n: int
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, std=1.0, n=3, low=1.0, high=3.0)
    """
    n = len(values)
    mean = math.fsum(values) / n
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else None
    return Spread(mean, std, n, min(values), max(values))


def spread_or_none(values: Sequence[float | None]) -> Spread | None:
    """None where a seed has no value: a mean over some of the seeds would stand beside means over all."""
    known = [value for value in values if value is not None]
    return spread(known) if known and len(known) == len(values) else None
