"""FedROD: a generic head trained as if classes were balanced, and a personal one on top of it.

    generic   CE(z_g + γ log n_{i,·}, y)                  trains the body and the shared head
    personal  CE(sg(z_g) + h_p(sg(f(x))), y)              trains h_p alone
    predict   global argmax z_g;   personal argmax z_g + h_p(f)

Reference: Chen, Chao. On bridging generic and personalized federated learning for image classification. ICLR 2022.
Differs from common code: missing classes are masked by default instead of counted once (option `missing_classes`);
h_p's gradient reaches neither body nor shared head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._label_prior import MISSING_CLASSES, MissingClasses, log_prior
from fedbm.methods.base import Batch, Facts, Phase, State, Task
from fedbm.methods.fedavg import FedAvg, linear_head
from fedbm.models.heads import Classifier, LinearHead
from fedbm.utils.seeds import seeded_modules


@dataclass(frozen=True)
class FedROD(FedAvg):
    """Robust decoupling of a generic and a personal classifier."""

    name = "fedrod"
    title = "FedROD"
    personalises = True
    local_parts = ("personal",)

    gamma: float = option(1.0, "strength γ of the label prior", least=0)
    missing_classes: MissingClasses = option("mask", MISSING_CLASSES)

    def model(self, task: Task) -> nn.Module:
        body = task.body()
        return RodModel(body, linear_head(body, task), task)

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        super().start_client(model, received, client, facts)
        return {"prior": log_prior(facts.label_counts, self.missing_classes, received["head.weight"], self.gamma)}

    def phases(self, epochs: int) -> Sequence[Phase]:
        return (Phase(epochs, ("body", "head", "personal")),)

    def loss(self, model: RodModel, batch: Batch, context: State) -> dict[str, Tensor]:
        features = model.features(batch.images)
        generic = model.head(features)
        personal = generic.detach() + model.personal(features.detach())
        return {
            "generic": F.cross_entropy(generic + context["prior"], batch.labels),
            "personal": F.cross_entropy(personal, batch.labels),
        }

    def global_states(self, server: State, clients: Mapping[int, State]) -> Iterator[State]:
        nobody = {n.replace("head.", "personal."): torch.zeros_like(server[n]) for n in ("head.weight", "head.bias")}
        yield {**server, **nobody}


class RodModel(Classifier):
    """head(f) + personal(f); with a personal head of zeros it is the generic model."""

    def __init__(self, body: nn.Module, head: LinearHead, task: Task) -> None:
        super().__init__(body, head)
        with seeded_modules(task.seed, "personal"):
            self.personal = LinearHead(head.in_features, head.out_features)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        logits: Tensor = self.head(features) + self.personal(features)
        return logits
