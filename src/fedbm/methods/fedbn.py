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
from fedbm.methods.base import Task
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
        if not self.local_names(model):
            raise FedBMError("FedBN needs a body with BatchNorm layers; without them it is FedAvg: use fedavg")
        return model

    def local_names(self, model: nn.Module) -> set[str]:
        layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BATCH_NORMS)]
        return {f"{name}.{tensor}" for name, layer in layers for tensor in layer.state_dict()}
