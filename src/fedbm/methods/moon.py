"""MOON: a client's features stay close to the received model's and move away from its own previous model's.

    z, z_g, z_p   features of an image under the model in training, the received model, the client's previous model
    client  min CE + μ · mean log(1 + exp((cos(z, z_p) − cos(z, z_g)) / τ))
            = CE − μ · mean log( e^{cos(z,z_g)/τ} / (e^{cos(z,z_g)/τ} + e^{cos(z,z_p)/τ}) )
    server  as FedAvg

The received and the previous model are frozen, in eval mode. The previous model is the one that the client trained when
it last took part. In a client's first round it is the received model: the term is then μ log 2 and has no gradient.

Reference: Li, He, Song. Model-contrastive federated learning. CVPR 2021.
Differs from the paper: z are the features of the body. The paper adds a projection head between body and classifier to
all methods that it compares. With μ = 0 it is FedAvg to the last bit.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods.base import Batch, Facts, OwnData, State, with_prefix
from fedbm.methods.fedavg import FedAvg
from fedbm.models.heads import Classifier, LinearHead


class MoonModel(Classifier):
    """body and head in training, with the frozen bodies of the received and of the client's previous model."""

    def __init__(self, body: nn.Module, head: LinearHead) -> None:
        super().__init__(body, head)
        self.received, self.previous = copy.deepcopy(body), copy.deepcopy(body)


@dataclass(frozen=True)
class Moon(FedAvg):
    """A contrast between models; the body of the previous round is kept at the client."""

    name = "moon"
    title = "MOON"
    model_class = MoonModel
    local_parts = ("received", "previous")

    contrast_weight: float = option(1.0, "weight μ of the contrast with the received and the previous model", least=0)
    contrast_temperature: float = option(0.5, "temperature τ of that contrast", above=0)

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        frozen = {**with_prefix(received, "body.", "received."), **with_prefix(received, "body.", "previous.")}
        return super().start_client(model, {**received, **frozen}, client, facts)

    def loss(self, model: MoonModel, batch: Batch, context: State) -> dict[str, Tensor]:
        features = model.features(batch.images)
        terms = model.head.loss(features, batch.labels)
        if self.contrast_weight:
            with torch.no_grad():
                towards, away = model.received(batch.images), model.previous(batch.images)
            contrast = contrastive_loss(features, towards, away, self.contrast_temperature)
            terms["contrast"] = self.contrast_weight * contrast
        return terms

    def finish_client(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        upload, _ = super().finish_client(model, data, context, facts)
        return upload, with_prefix(upload, "body.", "previous.")


def contrastive_loss(features: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Return the batch mean of log(1 + exp((cos(z, z_p) − cos(z, z_g)) / τ)) for features [B,F].

    >>> contrastive_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 0.0]]), 1.0)
    tensor(1.3133)
    """
    gap = F.cosine_similarity(features, away) - F.cosine_similarity(features, towards)
    return F.softplus(gap / temperature).mean()
