"""Derive named, independent random streams from one root seed.

    seed(name₁, name₂, …) = first 8 bytes of SHA-256("root/name₁/name₂/…")

A stream depends only on its names, never on what was drawn before it. So a client's batches in round t are the
same in one process, in a worker, on a GPU or at a hospital, and a resumed run needs no saved generator state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

_GLOBAL_GENERATOR = RLock()  # PyTorch's, which the runs of several threads share


def derive(root: int, *names: str | int) -> int:
    """Return the seed of the stream *names* under *root*, in [0, 2⁶³)."""
    text = "/".join(str(part) for part in (root, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_rng(root: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(derive(root, *names))


def torch_rng(root: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator: numbers drawn on the CPU and then moved are equal on every device."""
    return torch.Generator().manual_seed(derive(root, *names))


@contextmanager
def seeded_modules(root: int, *names: str | int) -> Iterator[None]:
    """Draw initial weights of modules built inside from this stream; restore the global generator afterwards."""
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        seed = derive(root, *names)
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():  # without a GPU, torch.manual_seed saves the stack for later, at every call
            torch.cuda.manual_seed_all(seed)
        yield
