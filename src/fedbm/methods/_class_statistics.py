"""Statistics of each class that clients compute from their features, and their sums over clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedbm.methods.base import OwnData, State, Upload
from fedbm.methods.fedavg import FedAvg, WeightedMean


def class_means(
    model: nn.Module, features: Callable[[Tensor], Tensor], data: OwnData, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean feature [K,F], shaped as *like*, and number of samples [K] of each class.

    The features are computed in eval mode. The mean of a missing class is 0.
    """
    model.eval()
    sums = torch.zeros_like(like, dtype=torch.float64)
    counts = torch.zeros_like(sums[:, 0])
    with torch.no_grad():
        for images, labels in data.batches():
            sums.index_add_(0, labels, features(images).double())
            counts += labels.bincount(minlength=len(counts))
    return (sums / counts.clamp_min(1)[:, None]).to(like.dtype), counts.to(like.dtype)


class MeanWithSums(WeightedMean):
    """FedAvg's mean of the model, and the sums over clients of what `terms` returns."""

    own: ClassVar[tuple[str, ...]]  # uploaded tensors that are not averaged

    def __init__(self, method: FedAvg, server: State) -> None:
        super().__init__(method, server)
        self.sums: State = {}

    def terms(self, state: State) -> State:
        """Return what one upload adds to the sums, in float64."""
        return {name: state[name].double() for name in self.own}

    def add(self, upload: Upload) -> None:
        for name, term in self.terms(upload.state).items():
            self.sums[name] = self.sums.get(name, 0) + term
        model = {name: value for name, value in upload.state.items() if name not in self.own}
        super().add(replace(upload, state=model))
