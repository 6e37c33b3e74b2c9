"""Statistics over seeds: mean and standard deviation, paired and Welch t-tests, sign-flip test, Holm's correction."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROUNDING = 1e-12  # differences that vary by a smaller share of the scores are equal up to rounding
MOST_FLIPS = 16  # largest number of differences for which all 2ⁿ sign patterns are tried
MIN_SEEDS = 3  # for a verdict: two seeds leave one degree of freedom, and agree too often by chance
POWER = 0.8  # probability with which seeds_needed() finds an effect
MOST_SEEDS = 1000  # largest number that seeds_needed() tries


@dataclass(frozen=True)
class Spread:
    mean: float
    std: float | None  # √(Σ(x − mean)²/(n − 1)); None for n = 1
    n: int
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return mean, standard deviation and range.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, std=1.0, n=3, low=1.0, high=3.0)
    """
    n = len(values)
    mean = math.fsum(values) / n
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else None
    return Spread(mean, std, n, min(values), max(values))


def spread_or_none(values: Sequence[float | None]) -> Spread | None:
    """Return the spread, or None if a seed has no value, because a mean over some seeds is not comparable."""
    known = [value for value in values if value is not None]
    return spread(known) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class Paired:
    """The differences x − y within each seed."""

    n: int
    mean: float
    low: float  # 95 % confidence interval; low = high = mean for a single pair
    high: float
    p: float | None  # of the two-sided t-test; None if the differences do not vary
    size: float | None  # Cohen's d_z = mean / std


def paired(x: Mapping[int, float], y: Mapping[int, float]) -> Paired | None:
    """Compare x and y by a paired t-test over the seeds both have; return None if they share no seed.

    t = mean / (std/√n) with n − 1 degrees of freedom.
    Hand-worked: differences 1, 2, 3 have mean 2, std 1, t = 2√3 = 3.4641, and p = 1 − t/√(t² + 2) = 0.0742.

    >>> result = paired({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    >>> result.n, result.mean, round(result.p, 4), result.size
    (3, 2.0, 0.0742, 2.0)
    """
    both = sorted(set(x) & set(y))
    if not both:
        return None
    differences = [x[seed] - y[seed] for seed in both]
    found = spread(differences)
    largest = max(abs(scores[seed]) for scores in (x, y) for seed in both)
    if not found.std or found.std <= ROUNDING * largest:  # one pair, or equal differences
        return Paired(found.n, found.mean, found.mean, found.mean, None, None)
    from scipy.stats import ttest_1samp

    test = ttest_1samp(differences, 0.0)
    low, high = map(float, test.confidence_interval(0.95))
    return Paired(found.n, found.mean, low, high, float(test.pvalue), found.mean / found.std)


def sign_flip(x: Mapping[int, float], y: Mapping[int, float]) -> float | None:
    """Return the two-sided p of the exact sign-flip test: the share of sign patterns with |Σ ±d| ≥ |Σ d|.

    If neither side is better, every difference could as well have the other sign. Return None if the sides share no
    seed, or more than MOST_FLIPS seeds.
    Hand-worked: 1, 2, 3 have 8 patterns, and two of them, +++ and −−−, reach 6.

    >>> sign_flip({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    0.25
    """
    differences = [x[seed] - y[seed] for seed in sorted(set(x) & set(y))]
    if not differences or len(differences) > MOST_FLIPS:
        return None
    sums = [0.0]
    for difference in differences:
        sums = [total + sign * difference for total in sums for sign in (1, -1)]
    rounding = ROUNDING * math.fsum(map(abs, differences))  # equal sums may differ in the last digit
    least = abs(math.fsum(differences)) - rounding
    return sum(abs(total) >= least for total in sums) / len(sums)


def seeds_needed(size: float, level: float) -> int | None:
    """Return the smallest n at which a paired two-sided t-test at *level* finds an effect of *size* with power 0.8.

    *size* is d_z = mean/std of the differences. Return None if n is larger than MOST_SEEDS.
    A standard value: d_z = 0.5 at level 0.05 needs 34 pairs.

    >>> seeds_needed(0.5, 0.05)
    34
    """
    from scipy.stats import nct
    from scipy.stats import t as student

    def enough(n: int) -> bool:
        far = float(student.ppf(1 - level / 2, n - 1))
        return bool(nct.sf(far, n - 1, abs(size) * math.sqrt(n)) >= POWER)

    found = MIN_SEEDS + bisect_left(range(MIN_SEEDS, MOST_SEEDS + 1), True, key=enough)
    return found if found <= MOST_SEEDS else None


def welch(x: Spread, mean: float, std: float, n: int) -> float | None:
    """Return the two-sided p of Welch's t-test against values with known *mean*, *std* and *n*.

    t = (x̄ − mean) / √(s²_x/n_x + std²/n), degrees of freedom by Welch and Satterthwaite. Return None if one side is a
    single value or neither side varies.
    Hand-worked: means 2 and −2, both with a std of 1 and n = 3, have t = 4·√1.5 = 4.899, 4 degrees of freedom.

    >>> round(welch(spread([1.0, 2.0, 3.0]), -2.0, 1.0, 3), 4)
    0.008
    """
    if x.std is None or n < 2 or not (x.std or std):
        return None
    from scipy.stats import ttest_ind_from_stats

    return float(ttest_ind_from_stats(x.mean, x.std, x.n, mean, std, n, equal_var=False).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for many comparisons by Holm: in ascending order p_(i)·(m − i + 1), non-decreasing, at most 1.

    None stays None and does not count.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        corrected[place] = highest
    return corrected
