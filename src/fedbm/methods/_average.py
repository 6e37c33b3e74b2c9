"""Weighted means Σ w_i x_i / Σ w_i of named tensors, summed in float64 in the order given. Data types are kept.

For integer tensors, which are counters (BatchNorm's `num_batches_tracked`), the maximum is kept. At the end: the means
of a client's features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedbm.methods.base import OwnData, State, Upload, copy_all


class Average:
    """Add states one by one. Only one sum is kept in memory.

    >>> average = Average()
    >>> average.add({"w": torch.tensor([1.0])}, 1.0)
    >>> average.add({"w": torch.tensor([4.0])}, 2.0)
    >>> average.result()["w"]
    tensor([3.])
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._sums: State = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, state: State, weight: float) -> None:
        if self._sums and state.keys() != self._sums.keys():
            raise ValueError("states to be averaged must have the same names")
        real = [name for name, value in state.items() if value.is_floating_point()]
        exact = [torch.empty_like(state[name], dtype=torch.float64) for name in real]
        copy_all(exact, [state[name] for name in real])
        if not self._sums:
            self._sums = {**state, **{name: torch.zeros_like(value) for name, value in zip(real, exact, strict=True)}}
        if real:
            torch._foreach_add_([self._sums[name] for name in real], exact, alpha=weight)
        for name in state.keys() - set(real):
            self._sums[name] = torch.maximum(self._sums[name], state[name])
        self._dtypes = {name: value.dtype for name, value in state.items()}
        self.weight += weight

    def result(self) -> State:
        return {name: value.to(self._dtypes[name]) for name, value in self.exact().items()}

    def exact(self) -> State:
        """Return the mean in float64."""
        return {name: total / self.weight if total.is_floating_point() else total for name, total in self._sums.items()}


class WeightedMean:
    """Σ_i w_i θ_i over all uploaded tensors; the rest of the server's state stays."""

    def __init__(self, weight_of: Callable[[Upload], float], server: State) -> None:
        self.weight_of, self.server, self.mean = weight_of, server, Average()

    def add(self, upload: Upload) -> None:
        self.mean.add(upload.state, self.weight_of(upload))

    def result(self) -> State:
        return {**self.server, **self.mean.result()}


class MeanWithSums(WeightedMean):
    """The weighted mean of the model, and the sums over clients of what `terms` returns."""

    own: ClassVar[tuple[str, ...]]  # uploaded tensors that are not averaged

    def __init__(self, weight_of: Callable[[Upload], float], server: State) -> None:
        super().__init__(weight_of, server)
        self.sums: State = {}

    def terms(self, state: State) -> State:
        """Return what one upload adds to the sums, in float64."""
        return {name: state[name].double() for name in self.own}

    def add(self, upload: Upload) -> None:
        for name, term in self.terms(upload.state).items():
            self.sums[name] = self.sums.get(name, 0) + term
        super().add(replace(upload, state={n: v for n, v in upload.state.items() if n not in self.own}))


class SplitMean:
    """The plain mean of parameters and of what belongs to them, and the mean of BatchNorm statistics by samples.

    The server's state has a tensor `control` + name for each parameter.
    """

    def __init__(self, server: State, clients: int, control: str) -> None:
        self.server, self.clients = server, clients
        self.parameters = {name.removeprefix(control) for name in server if name.startswith(control)}
        self.plain, self.by_size = Average(), Average()

    def add(self, upload: Upload) -> None:
        statistics = {n: v for n, v in upload.state.items() if n in self.server and n not in self.parameters}
        self.by_size.add(statistics, float(upload.n))
        self.plain.add({n: v for n, v in upload.state.items() if n not in statistics}, 1.0)


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
