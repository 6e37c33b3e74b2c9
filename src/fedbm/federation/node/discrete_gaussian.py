"""Exact samples of the discrete Gaussian, from the operating system's random numbers.

    P(v) = exp(−v² / 2σ²) / Σ_w exp(−w² / 2σ²)      for every whole number v, with a whole number σ

The discrete Gaussian and its privacy: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy",
NeurIPS 2020. The sampler is a rejection sampler that follows Karney, "Sampling exactly from the normal
distribution", ACM Transactions on Mathematical Software 42, 2016:

1. Toss coins: k is the number of heads before the first tail. Draw j evenly from 0 to σ − 1. The candidate is
   y = kσ + j, which has probability 2^−(k+1) / σ.
2. Accept y with probability 13/16 · 2^k · exp(−y² / 2σ²). The constant keeps it below 1 (largest at y = σ: 0.986).
   Then y has a probability in proportion to exp(−y² / 2σ²).
3. Give y a random sign. Reject −0, since 0 would count twice.

A candidate has its coins, j and sign from one word of 64 bits. If all its coins are heads, it is rejected: with σ up to
2^32, it would be accepted with a probability below 2^−600.

Step 2 compares a uniform U with that probability. Floating point decides when U is farther from it than any rounding
error. Otherwise, about once in 2^40 candidates, whole-number arithmetic decides for the same U, with more digits of U
as needed. So no sample depends on a rounding error. Nothing here takes a seed, and no draw can be repeated.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_SIGMA = 2**32
BATCH_SIZE = 2**17  # candidates at a time: their arrays stay in the processor's cache
UNIFORM_BITS = 53  # of U at first: a float64 holds them exactly
SCALE = Fraction(13, 16)
MARGIN = 2.0**-40  # bound on the relative error of the float64 probability; numpy's exp alone is below 2^−50


def sample_discrete_gaussian(sigma: int, count: int) -> IntArray:
    """Return *count* independent samples with the whole number *sigma* from 1 to 2^32."""
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"sigma must be from 1 to {MAX_SIGMA}, not {sigma}")
    found = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        drawn = _accepted(sigma, min(BATCH_SIZE, 2 * (count - done) + 64))[: count - done]
        found[done : done + len(drawn)] = drawn
        done += len(drawn)
    return found


def _accepted(sigma: int, candidates: int) -> IntArray:
    """Draw so many candidates and return those that are accepted."""
    words, uniform = _random_words(candidates), _random_words(candidates) >> np.uint64(64 - UNIFORM_BITS)
    width = (sigma - 1).bit_length()  # a word holds, from its lowest bit on: the sign, j, and the coins
    negative = (words & np.uint64(1)).astype(bool)
    j = ((words >> np.uint64(1)) & np.uint64(2**width - 1)).astype(np.int64)
    coins = words >> np.uint64(width + 1)
    tail = ~coins & (coins + np.uint64(1))  # the lowest bit that is 0, alone
    k = np.frexp(tail.astype(np.float64))[1].astype(np.int64) - 1
    y = k * sigma + j
    real = y.astype(np.float64)
    probability = np.ldexp(float(SCALE), k) * np.exp(-(real * real) / (2.0 * sigma * sigma)) * 2.0**UNIFORM_BITS
    u = uniform.astype(np.float64)  # U is from u to u + 1, in units of 2^−53
    accept = u + 1 <= probability * (1 - MARGIN)
    undecided = ~accept & (u < probability * (1 + MARGIN) + 1)
    for index in np.flatnonzero(undecided):
        accept[index] = _is_below(int(uniform[index]), int(k[index]), Fraction(int(y[index]) ** 2, 2 * sigma**2))
    accept &= (j < sigma) & (k < 63 - width) & ~(negative & (y == 0))
    return np.where(negative, -y, y)[accept]


def _is_below(u: int, k: int, exponent: Fraction) -> bool:
    """Decide exactly whether U < 13/16 · 2^k · exp(−exponent), for the U with the first bits *u*."""
    bits, scale = UNIFORM_BITS, SCALE * 2**k
    for lower, upper in _exp_bounds(exponent):
        if Fraction(u + 1, 2**bits) <= scale * lower:
            return True
        if Fraction(u, 2**bits) >= scale * upper:
            return False
        if scale * (upper - lower) < Fraction(1, 2**bits):
            u, bits = u << 64 | int(_random_words(1)[0]), bits + 64
    raise AssertionError("the bounds never end")


def _exp_bounds(exponent: Fraction) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield closer and closer bounds of exp(−exponent): neighbouring sums of its alternating series."""
    total = term = Fraction(1)
    for number in itertools.count(1):
        term *= -exponent / number
        before, total = total, total + term
        if number > exponent:  # from here on the terms shrink
            yield min(before, total), max(before, total)


def _random_words(count: int) -> npt.NDArray[np.uint64]:
    """Return random 64-bit words from the operating system's cryptographic generator."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
