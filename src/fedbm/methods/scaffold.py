"""SCAFFOLD: control variates cancel the difference between a client's gradient and the mean gradient of all clients.

    client  step along ∇f_i − c_i + c;   c_i⁺ = mean raw minibatch gradient along the path, weight decay left out
    server  θ ← mean_P θ_i,   c ← c + (1/N) Σ_P (c_i⁺ − c_i)                       (plain mean, all c start at 0)

After every round, at any participation, c = (1/N) Σ_all c_i. BatchNorm statistics are averaged as in FedAvg.
It minimises (1/N) Σ f_i, with equal weights for all clients. FedAvg minimises Σ (n_i/n) f_i.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging for federated
learning. ICML 2020.
Differs from common code: c_i⁺ is measured, not inferred as c_i − c + (θ − θ_i)/(steps·η). Under plain SGD without decay
the two are equal; under momentum 0.9 the last term is up to 10 times too large (8 times from 45 steps on), and under
Adam it means nothing. Momentum and Adam see the corrected gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedbm.config.options import option
from fedbm.methods._average import SplitMean
from fedbm.methods.base import Facts, OwnData, Piece, State, trained_parameters, unfrozen_parameters, with_prefix
from fedbm.methods.fedavg import FedAvg

C, DELTA = "scaffold.c.", "scaffold.delta."
OWN, SUM, STEPS = "scaffold.own.", "scaffold.sum.", "scaffold.steps"


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Controlled averaging; a control variate per client is kept at the client. Twice FedAvg's traffic."""

    name = "scaffold"
    title = "SCAFFOLD"

    weighting: Literal["size"] = option("size", "for BatchNorm statistics; the parameters' mean is plain, as defined")

    def server_init(self, model: nn.Module) -> State:
        zeros = {C + name: torch.zeros_like(p) for name, p in unfrozen_parameters(model)}
        return {**super().server_init(model), **zeros}

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        return {**super().broadcast(server, round_), "control": Piece(round_, with_prefix(server, C))}

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        super().start_client(model, received, client, facts)
        context = {STEPS: torch.zeros((), device=next(model.parameters()).device)}
        for name, parameter in unfrozen_parameters(model):
            context[C + name] = received[C + name]
            context[OWN + name] = client.get(C + name, torch.zeros_like(parameter))
            context[SUM + name] = torch.zeros_like(parameter)
        return context

    def adjust_gradients(self, model: nn.Module, context: State) -> None:
        context[STEPS].add_(1)
        names, _, gradients = trained_parameters(model)
        torch._foreach_add_([context[SUM + name] for name in names], gradients)
        torch._foreach_add_(gradients, [context[C + name] for name in names])
        torch._foreach_sub_(gradients, [context[OWN + name] for name in names])

    def finish_client(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        upload, _ = super().finish_client(model, data, context, facts)
        own: State = {}
        for name, _ in unfrozen_parameters(model):
            own[C + name] = context[SUM + name] / context[STEPS]
            upload[DELTA + name] = own[C + name] - context[OWN + name]
        return upload, own

    def aggregator(self, server: State, clients: int) -> ControlledMean:
        return ControlledMean(server, clients, C)


class ControlledMean(SplitMean):
    """θ ← mean_P θ_i and c ← c + (1/N) Σ_P (c_i⁺ − c_i); BatchNorm statistics as in FedAvg."""

    def result(self) -> State:
        server, mean = self.server, self.plain.exact()
        new = {**server, **self.by_size.result()}
        for name in self.parameters:
            new[name] = mean[name].to(server[name].dtype)
            control = server[C + name].double() + self.plain.weight / self.clients * mean[DELTA + name]
            new[C + name] = control.to(server[C + name].dtype)
        return new
