"""The label prior γ log n_k of a client, added to logits so that a rare class is not forgotten.

For a class that the client does not have, `mask` removes it from the softmax (log 0 = −∞) and `one` counts it once.
With `mask`, the loss of a client with a single class is 0, so only weight decay changes its weights.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

MissingClasses = Literal["mask", "one"]
MISSING_CLASSES = "a class the client does not have: leave it out of the softmax, or count it once"


def log_prior(counts: tuple[int, ...], missing_classes: MissingClasses, like: Tensor, strength: float = 1.0) -> Tensor:
    """Return γ log n_k [K], in the precision and on the device of *like*.

    >>> log_prior((1, 0), "one", torch.zeros(()))
    tensor([0., 0.])
    """
    held = held_counts(counts, missing_classes, like)
    return strength * held.log() if strength else torch.zeros_like(held)


def held_counts(counts: tuple[int, ...], missing_classes: MissingClasses, like: Tensor) -> Tensor:
    """Return the label counts [K], with at least 1 for each class if missing classes count once."""
    held = torch.tensor(counts, dtype=like.dtype, device=like.device)
    return held.clamp_min(1) if missing_classes == "one" else held
