"""Client-side differential privacy: a site's update is clipped, and noise is added, before it leaves.

    u       what the site would send − what it was sent (a tensor it was not sent counts from 0), all real numbers
    sent    what it was sent + u · min(1, C/‖u‖) + N(0, (zC)²)

ε at δ holds for the whole of a site's data against a site that sends no update (sensitivity C), over every update that
the site has released in the run, repeated rounds included. The Rényi accountant is Opacus's, without amplification by
sampling: the server knows whom it asked. Noise comes from a generator that the system seeds, never from the run's seed,
which the server knows. Whole numbers (BatchNorm's step counter) are sent as they are: they tell n, as the census does.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import torch

from fedbm.errors import FedBMError
from fedbm.federation.protocol.upload_checks import norm_of
from fedbm.methods.base import State


def privatise(upload: State, received: State, clip: float, noise: float) -> State:
    """What may leave the site in place of *upload*."""
    rng = torch.Generator().manual_seed(secrets.randbits(63))
    factor = min(1.0, clip / max(norm_of(upload, received), 1e-12))
    found: State = {}
    for name, value in upload.items():
        if not value.is_floating_point():
            found[name] = value
            continue
        start = received[name] if name in received else torch.zeros_like(value)
        drawn = torch.randn(value.shape, generator=rng, dtype=torch.float64) * (noise * clip)
        moved = start.double() + (value.double() - start.double()) * factor + drawn.to(value.device)
        found[name] = moved.to(value.dtype)
    return found


def epsilon(noise: float, releases: int, delta: float) -> float:
    """ε(δ) of so many updates with noise multiplier z."""
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise FedBMError("differential privacy needs Opacus: pip install -c constraints.txt 'fedbm[dp]'") from error
    accountant = RDPAccountant()
    accountant.history = [(noise, 1.0, releases)]
    found = float(accountant.get_epsilon(delta))
    return found if math.isfinite(found) else math.inf


def check_private(method: Any, evaluate: str) -> None:
    """Refuse what would tell exact numbers of a site beside the noisy ones."""
    if "label_counts" in method.shares:
        raise FedBMError(f"{method.name} sends exact label counts, so dp_noise would protect nothing: choose another")
    if evaluate != "server":
        raise FedBMError('nodes would send exact confusion matrices: with dp_noise say evaluate = "server"')
