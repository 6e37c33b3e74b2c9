"""FedBN: clients share all weights except those of BatchNorm, which stay at each client.

    server  θ ← Σ_i w_i θ_i over all tensors that do not belong to a BatchNorm layer
    client  keeps weight, bias and running statistics of its BatchNorm layers

Reference: Li, Jiang, Zhang, Kamp, Dou. FedBN: federated learning on non-IID features via local batch normalization.
ICLR 2021.
There is no common model. The global score is the mean, over clients that took part so far, of their models' scores on
the common test set, which only a simulation has. Needs a body with BatchNorm: without it, the method is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedbm.errors import FedBMError
from fedbm.methods.base import Facts, OwnData, State, Task, copy_state
from fedbm.methods.fedavg import FedAvg
from fedbm.models.generator_loss import BATCH_NORMS


@dataclass(frozen=True)
class FedBN(FedAvg):
    """Shared weights, local BatchNorm."""

    name = "fedbn"
    title = "FedBN"
    personalises = True
    common_model = False

    def model(self, task: Task) -> nn.Module:
        model = super().model(task)
        if not batch_norm_names(model):
            raise FedBMError("FedBN needs a body with BatchNorm layers; without them it is FedAvg: use fedavg")
        return model

    def server_init(self, model: nn.Module) -> State:
        return split_batch_norm(model, copy_state(model))[0]

    def client_init(self, task: Task, facts: Facts) -> State:
        model = self.model(task)
        return split_batch_norm(model, copy_state(model))[1]

    def finish_client(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        return split_batch_norm(model, super().finish_client(model, data, context, facts)[0])


def batch_norm_names(model: nn.Module) -> set[str]:
    """Return the names of all tensors that belong to BatchNorm layers."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BATCH_NORMS)]
    return {f"{name}.{tensor}" for name, layer in layers for tensor in layer.state_dict()}


def split_batch_norm(model: nn.Module, state: State) -> tuple[State, State]:
    """Split *state* into the tensors that are shared and those of BatchNorm, which are not."""
    own = batch_norm_names(model)
    return {n: v for n, v in state.items() if n not in own}, {n: v for n, v in state.items() if n in own}
