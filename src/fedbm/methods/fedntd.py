"""FedNTD: a client keeps the received model's view of the classes other than the true one.

    q̃_τ(c) = e^{z_c/τ} / Σ_{k≠y} e^{z_k/τ}  for c ≠ y: probabilities of the not-true classes; q̃ᵍ_τ by the received model
    client  min CE(z, y) + β · mean KL(q̃ᵍ_τ ‖ q̃_τ)
    server  as FedAvg

The received model is frozen, in eval mode. With two classes there is one not-true class, and the term is 0.

Reference: Lee, Jeong, Shin, Bae, Yun. Preservation of the global knowledge by not-true distillation in federated
learning. NeurIPS 2022.
The loss, τ = 1 and β = 1 are those of the authors' code. One of its two versions multiplies the divergence by τ². Here
there is no such factor, which matters only if τ ≠ 1. With β = 0 it is FedAvg to the last bit.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods.base import Batch, Facts, State, with_prefix
from fedbm.methods.fedavg import FedAvg
from fedbm.models.heads import Classifier, LinearHead


class TaughtModel(Classifier):
    """body and head in training, with the frozen received model as their teacher."""

    def __init__(self, body: nn.Module, head: LinearHead) -> None:
        super().__init__(body, head)
        self.teacher = Classifier(copy.deepcopy(body), copy.deepcopy(head))


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Distillation from the received model on the classes that a sample does not have."""

    name = "fedntd"
    title = "FedNTD"
    model_class = TaughtModel
    local_parts = ("teacher",)

    distillation_weight: float = option(
        1.0, "weight β of distillation from the received model, true class left out", least=0
    )
    distillation_temperature: float = option(1.0, "temperature τ of that distillation", above=0)

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        return super().start_client(model, {**received, **with_prefix(received, "", "teacher.")}, client, facts)

    def loss(self, model: TaughtModel, batch: Batch, context: State) -> dict[str, Tensor]:
        logits = model(batch.images)
        terms = {"cross_entropy": F.cross_entropy(logits, batch.labels)}
        if self.distillation_weight:
            with torch.no_grad():
                taught = model.teacher(batch.images)
            divergence = not_true_divergence(logits, taught, batch.labels, self.distillation_temperature)
            terms["not_true"] = self.distillation_weight * divergence
        return terms


def not_true_divergence(logits: Tensor, taught: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the batch mean of KL(q̃ᵍ_τ ‖ q̃_τ) for the logits [B,K] of the model in training and of the received one.

    >>> labels = torch.tensor([0])
    >>> not_true_divergence(torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 1.0]]), labels, 1.0)
    tensor(0.)
    """
    classes = logits.shape[1]
    others = (labels[:, None] + torch.arange(1, classes, device=labels.device)) % classes  # all but the true class
    ours, theirs = (F.log_softmax(values.gather(1, others) / temperature, dim=1) for values in (logits, taught))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
