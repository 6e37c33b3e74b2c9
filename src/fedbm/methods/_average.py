"""Weighted means Σ w_i x_i / Σ w_i of named tensors, summed in float64 in the order given. Data types are kept.

For integer tensors, which are counters (BatchNorm's `num_batches_tracked`), the maximum is kept.
"""

from __future__ import annotations

import torch

from fedbm.methods.base import State, Upload, copy_all


class NothingToAverage(ValueError):
    """There are no states to average."""


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
            if real:
                torch._foreach_mul_(exact, weight)
            self._sums = {**state, **dict(zip(real, exact, strict=True))}
        else:
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
        if self.weight <= 0:
            raise NothingToAverage("nothing to average")
        return {name: total / self.weight if total.is_floating_point() else total for name, total in self._sums.items()}


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
