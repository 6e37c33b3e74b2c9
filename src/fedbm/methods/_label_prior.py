"""γ log n_k of a client's label counts, added to logits so that a rare class is not forgotten.

A class the client does not have: `mask` takes it out of the client's softmax (log 0 = −∞), `one` counts it once.
Masked, a client that holds a single class has no loss at all and only decays its weights; its record shows that.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

MissingClasses = Literal["mask", "one"]
MISSING_CLASSES = "a class the client does not have: leave it out of the softmax, or count it once"


def log_prior(counts: tuple[int, ...], missing_classes: MissingClasses, like: Tensor, strength: float = 1.0) -> Tensor:
    """γ log n_k [K], in the precision and on the device of *like*.

    >>> log_prior((1, 0), "one", torch.zeros(()))
    tensor([0., 0.])
    """
    if strength == 0:
        return torch.zeros(len(counts), dtype=like.dtype, device=like.device)
    held = torch.tensor(counts, dtype=like.dtype, device=like.device)
    return strength * (held.clamp_min(1) if missing_classes == "one" else held).log()
