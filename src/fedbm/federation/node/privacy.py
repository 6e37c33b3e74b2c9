"""Differential privacy at a site: clip its update, put it on a grid, and add discrete Gaussian noise before it leaves.

    u       what the site would send − what it received (a tensor it did not receive counts from 0), all real numbers
    g       zC / 2^24, the step of the grid; so the noise has the standard deviation zC = 2^24 steps
    m       u · min(1, C/‖u‖) / g, each number rounded towards zero
    sent    what it received + g · (m + noise), with noise from the discrete Gaussian of σ = 2^24

Rounding towards zero makes no number larger, so ‖gm‖ ≤ C. The noise and m + noise are whole numbers without rounding
errors, so floating point reveals nothing of u (the attack of Mironov, CCS 2012, "On significance of the least
significant bits for differential privacy"). The server knows what the site received. The last line rounds to the
tensor's precision, but it uses only m + noise and what the server knows. It is post-processing, which costs no privacy.

One update is ρ-zero-concentrated differentially private with ρ = C² / 2(zC)² = 1 / 2z², and ρ of several adds up
(Canonne, Kamath, Steinke 2020). This compares a site's data with an update of 0. Selection of clients does not lower
it, because the server knows which clients it asked. Whole numbers (BatchNorm's step counter) leave without noise: they
show n, as the census does.
"""

from __future__ import annotations

import math

import torch

from fedbm.errors import FedBMError
from fedbm.federation.node.discrete_gaussian import IntArray, sample_discrete_gaussian
from fedbm.federation.protocol.packing import start_of
from fedbm.methods.base import State

SIGMA = 2**24  # the noise's standard deviation, in steps of the grid
SLACK = 1 - 2.0**-20  # for rounding errors in the norm of up to 2^31 numbers, so that no update exceeds C


def privatise(upload: State, received: State, clip: float, noise: float) -> State:
    """Return what may leave the site in place of *upload*, with the norm C and the noise multiplier z.

    Raises:
        FedBMError: if the update is not finite.
    """
    step = noise * clip / SIGMA
    found = dict(upload)
    for name, steps in clip_to_grid(upload, received, clip, step).items():
        noisy = steps + sample_discrete_gaussian(SIGMA, steps.size).reshape(steps.shape)
        moved = start_of(name, upload[name], received) + torch.as_tensor(noisy * step)
        found[name] = moved.to(upload[name].dtype)
    return found


def clip_to_grid(upload: State, received: State, clip: float, step: float) -> dict[str, IntArray]:
    """Return the update in whole *step*s for each tensor of real numbers, with a norm of at most *clip*."""
    gaps = {
        name: value.detach().cpu().double() - start_of(name, value, received)
        for name, value in upload.items()
        if value.is_floating_point()
    }
    norm = math.sqrt(math.fsum(float(gap.square().sum()) for gap in gaps.values()))
    if not math.isfinite(norm):
        raise FedBMError("the update is not finite, so it cannot be clipped; a lower lr may help")
    factor = min(1.0, clip * SLACK / norm) if norm else 1.0
    return {name: (gap * factor / step).trunc().to(torch.int64).numpy() for name, gap in gaps.items()}


def epsilon(rho: float, delta: float) -> float:
    """Return the smallest ε at δ that ρ-zero-concentrated differential privacy implies.

    Canonne, Kamath, Steinke 2020, Corollary 13: for every α > 1 it implies
    ε = αρ + ln(1 − 1/α) + (ln(1/δ) − ln α) / (α − 1). A search finds the best α; any α would be valid.

    >>> round(epsilon(1 / 2, 1e-5), 2)
    4.73
    """

    def bound(exponent: float) -> float:
        over = math.exp(exponent)  # α − 1
        return (1 + over) * rho + exponent - math.log1p(over) - (math.log(delta) + math.log1p(over)) / over

    low, high = -50.0, 50.0
    for _ in range(200):
        third = (high - low) / 3
        if bound(low + third) < bound(high - third):
            high -= third
        else:
            low += third
    return max(0.0, bound((low + high) / 2))
