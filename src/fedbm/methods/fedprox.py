"""FedProx: FedAvg with a term that pulls clients back to the global model.

    client  min f_i(θ) + (μ/2) ‖θ − θᵗ‖²,   so   gradient += μ (θ − θᵗ)

Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys 2020.
Differs from the paper's algorithm, which draws clients in proportion to their samples and weights them equally. Here,
as in the authors' code, they are drawn uniformly and weighted by their samples. Differs from common code: the norm is
squared (an unsquared one has a gradient of constant length). With μ = 0 it is FedAvg to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedbm.config.options import option
from fedbm.methods.base import Facts, State, trained_parameters
from fedbm.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """A quadratic penalty on the distance from the global model."""

    name = "fedprox"
    title = "FedProx"

    mu: float = option(0.001, "strength μ of the pull towards the global model", least=0)

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        super().start_client(model, received, client, facts)
        return received

    def adjust_gradients(self, model: nn.Module, context: State) -> None:
        if self.mu:
            names, values, gradients = trained_parameters(model)
            moved = torch._foreach_sub(values, [context[name] for name in names])
            torch._foreach_add_(gradients, moved, alpha=self.mu)
