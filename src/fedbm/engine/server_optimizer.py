"""The server's optimiser: the mean of the clients' models gives a direction, along which the server takes a step.

    Δ = mean − θ
    momentum    m ← β m + Δ,                                             θ ← θ + η m
    adam        m ← β m + (1 − β) Δ,  v ← β₂ v + (1 − β₂) Δ²,            θ ← θ + η m / (√v + ε)
    yogi        m as adam,            v ← v − (1 − β₂) Δ² sign(v − Δ²),  θ as adam

over the parameters that clients train. All other tensors, such as BatchNorm statistics, are the plain mean: a step
could make a variance negative. m starts at 0 and v at ε²; β₂ = 0.99, ε = 0.001. With momentum, β = 0 and η = 1 the new
θ is the mean.

Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive federated optimization. ICLR 2021.
Momentum: Hsu, Qi, Brown. Measuring the effects of non-identical data distribution for federated visual classification.
2019; their step is Nesterov's. In the code of Reddi et al., v starts at 0 and the bias is corrected.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedbm.config.options import TrainOptions
from fedbm.errors import FedBMError
from fedbm.methods import FedAvg
from fedbm.methods.base import Method, State

PREFIX = "server_optimizer."  # of its tensors in a checkpoint
M, V = f"{PREFIX}m.", f"{PREFIX}v."
BETA_2, EPSILON = 0.99, 1e-3


class ServerOptimizer:
    """Take the server's steps. *moments* are the tensors m and v by name, if a run is resumed."""

    def __init__(self, train: TrainOptions, moments: State | None = None) -> None:
        self._kind, self._lr, self._beta = train.server_optimizer, train.server_lr, train.server_momentum
        self.moments = moments or {}

    def step(self, server: State, mean: State, names: Iterable[str]) -> State:
        """Return *mean* with the tensors *names* replaced by a step from *server* towards it."""
        new = dict(mean)
        for name in names:
            delta = mean[name].double() - server[name].double()
            m = self._beta * self._moment(M + name, delta, 0.0)
            if self._kind == "momentum":
                m = step = m + delta
            else:
                m = m + (1 - self._beta) * delta
                v, square = self._moment(V + name, delta, EPSILON**2), delta.square()
                change = square - v if self._kind == "adam" else square * torch.sign(square - v)
                v = v + (1 - BETA_2) * change
                step = m / (v.sqrt() + EPSILON)
                self.moments[V + name] = v.to(mean[name].dtype)
            self.moments[M + name] = m.to(mean[name].dtype)
            new[name] = (server[name].double() + self._lr * step).to(mean[name].dtype)
        return new

    def _moment(self, key: str, like: Tensor, start: float) -> Tensor:
        return self.moments[key].double() if key in self.moments else torch.full_like(like, start)


def restore_optimizer(state: State, train: TrainOptions) -> tuple[State, ServerOptimizer | None]:
    """Split a checkpoint's tensors into the rest and the server's optimiser, which is None for a plain mean."""
    rest = {name: value for name, value in state.items() if not name.startswith(PREFIX)}
    moments = {name: value for name, value in state.items() if name not in rest}
    return rest, None if train.server_optimizer == "mean" else ServerOptimizer(train, moments)


def check_server_optimizer(method: Method, train: TrainOptions) -> None:
    """Raise FedBMError if the server takes a step, but the method does more than average at the server."""
    if train.server_optimizer != "mean" and (method.central or type(method).aggregator is not FedAvg.aggregator):
        raise FedBMError(
            f"{method.name} does not average as FedAvg does, so server_optimizer = {train.server_optimizer} does not "
            "apply; remove server_optimizer"
        )
