"""FedRep: one body for all, a head for each.

    client  E epochs of the head on the frozen body (in eval mode), then E epochs of the body under the frozen head
    server  body ← Σ_i w_i body_i, BatchNorm included; heads never leave their clients

Reference: Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated
learning. ICML 2021.
Differs from the paper, in which the mean over clients is plain (weighting = equal) and the head gets more steps than
the body. It does twice the local work of the others. Its paper has no common classifier. The global score uses clients'
heads, which only a simulation can read: their mean on the shared body, or their vote. The method's own score is
personal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedbm.config.options import option
from fedbm.methods._average import Average
from fedbm.methods.base import Phase, State, with_prefix
from fedbm.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedRep(FedAvg):
    """Shared representation, personal heads."""

    name = "fedrep"
    title = "FedRep"
    personalises = True
    local_parts = ("head",)

    common_head: Literal["mean", "vote"] = option(
        "mean", "global score: the mean of the clients' heads, or a vote of them all"
    )

    @property
    def ensemble(self) -> bool:
        return self.common_head == "vote"

    @property
    def common_model(self) -> bool:
        return self.common_head == "mean"

    def phases(self, epochs: int) -> Sequence[Phase]:
        return (Phase(epochs, ("head",)), Phase(epochs, ("body",)))

    def global_states(self, server: State, clients: Mapping[int, State]) -> Iterator[State]:
        if self.ensemble:
            yield from super().global_states(server, clients)
            return
        heads = Average()
        for client in clients.values():
            heads.add(with_prefix(client, "head."), 1.0)
        if clients:
            yield {**server, **heads.result()}
