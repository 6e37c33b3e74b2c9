"""One root seed → named, independent, order-free streams.

    seed(name₁, name₂, …) = first 8 bytes of SHA-256("root/name₁/name₂/…")

A stream depends on its names alone, never on what was drawn before it. So a client's batches at round t are
the same in one process, in a worker, on a GPU or at a hospital, and a resumed run needs no saved generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(root: int, *names: str | int) -> int:
    """The seed of the stream called *names* under *root*, in [0, 2⁶³)."""
    text = "/".join(str(part) for part in (root, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_rng(root: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(derive(root, *names))


def torch_rng(root: int, *names: str | int) -> torch.Generator:
    """A CPU generator: drawn on the CPU and moved, numbers are equal on every device."""
    return torch.Generator().manual_seed(derive(root, *names))


@contextmanager
def seeded_modules(root: int, *names: str | int) -> Iterator[None]:
    """Modules built inside get initial weights from this stream; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(root, *names))
        yield
