"""FedDyn: each client's objective is corrected so that its own optimum agrees with the federation's.

    client  min f_i(θ) − ⟨g_i, θ⟩ + (α/2) ‖θ − θᵗ‖²,   then   g_i ← g_i − α (θ_i − θᵗ)
    server  h ← h − (α/N) Σ_P (θ_i − θᵗ),   θ ← mean_P θ_i − h/α          (plain mean, N = all clients)

After every round, at any participation, h = (1/N) Σ_all g_i. BatchNorm statistics are averaged as in FedAvg.
It minimises (1/N) Σ f_i, with equal weights for all clients. FedAvg minimises Σ (n_i/n) f_i.

Reference: Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated learning based on dynamic regularization.
ICLR 2021.
Differs from common code: the norm is squared and has a gradient; h sums over selected clients with 1/N, unweighted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedbm.config.options import option
from fedbm.methods._average import SplitMean
from fedbm.methods.base import Facts, OwnData, State, trained_parameters, unfrozen_parameters
from fedbm.methods.fedavg import FedAvg

H, G = "feddyn.h.", "feddyn.g."


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Dynamic regularisation; a gradient per client is kept at the client."""

    name = "feddyn"
    title = "FedDyn"

    weighting: Literal["size"] = option("size", "for BatchNorm statistics; the parameters' mean is plain, as defined")
    alpha: float = option(0.01, "strength α of the dynamic regulariser", above=0)

    def server_init(self, model: nn.Module) -> State:
        zeros = {H + name: torch.zeros_like(p) for name, p in unfrozen_parameters(model)}
        return {**super().server_init(model), **zeros}

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        super().start_client(model, received, client, facts)
        context = dict(received)
        for name, parameter in unfrozen_parameters(model):
            context[G + name] = client.get(G + name, torch.zeros_like(parameter))
        return context

    def adjust_gradients(self, model: nn.Module, context: State) -> None:
        names, values, gradients = trained_parameters(model)
        moved = torch._foreach_sub(values, [context[name] for name in names])
        torch._foreach_add_(gradients, moved, alpha=self.alpha)
        torch._foreach_sub_(gradients, [context[G + name] for name in names])

    def finish_client(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        upload, _ = super().finish_client(model, data, context, facts)
        own = {
            G + name: context[G + name] - self.alpha * (upload[name] - context[name])
            for name, _ in unfrozen_parameters(model)
        }
        return upload, own

    def aggregator(self, server: State, clients: int) -> DynamicMean:
        return DynamicMean(self.alpha, server, clients)


class DynamicMean(SplitMean):
    """h ← h − (α/N) Σ_P (θ_i − θᵗ) and θ ← mean_P θ_i − h/α; BatchNorm statistics as in FedAvg."""

    def __init__(self, alpha: float, server: State, clients: int) -> None:
        super().__init__(server, clients, H)
        self.alpha = alpha

    def result(self) -> State:
        server, alpha = self.server, self.alpha
        new = {**server, **self.by_size.result()}
        for name, mean in self.plain.exact().items():
            moved = mean - server[name].double()
            h = server[H + name].double() - alpha * self.plain.weight / self.clients * moved
            new[H + name] = h.to(server[name].dtype)
            new[name] = (mean - h / alpha).to(server[name].dtype)
        return new
