"""Class means of a client's features, computed once after training in eval mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedbm.methods.base import OwnData


def class_means(
    model: nn.Module, features: Callable[[Tensor], Tensor], data: OwnData, classes: int
) -> tuple[Tensor, Tensor]:
    """Return mean feature [K,F] and number of samples [K] of each class; the mean of a missing class is 0."""
    model.eval()
    sums, counts = torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for images, labels in data.batches():
            found = features(images).double()
            if not counts.ndim:
                sums = torch.zeros(classes, found.shape[1], dtype=found.dtype, device=found.device)
                counts = torch.zeros(classes, dtype=found.dtype, device=found.device)
            sums.index_add_(0, labels, found)
            counts += labels.bincount(minlength=classes)
    dtype = next(model.parameters()).dtype
    return (sums / counts.clamp_min(1)[:, None]).to(dtype), counts.to(dtype)
