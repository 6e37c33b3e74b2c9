"""FedETF: a frozen classifier with class vectors at equal angles, the limit of neural collapse.

    V       = √(K/(K−1)) · U (I − 11ᵀ/K),  U orthonormal K × K, drawn once      (v_j·v_k = −1/(K−1) for j ≠ k)
    g       = norm(P f(x)),  P linear F → K, trained and averaged with the body
    client  CE(β gᵀV + log n_{i,·}, y),  β learnable from 1
    predict softmax(β gᵀV); as long as β > 0, gᵀV has the same argmax

Reference: Li, Shang, He, Lin, Wu. No fear of classifier biases: neural collapse inspired federated learning with
synthetic and fixed classifier. ICCV 2023.
Differs from common code: missing classes are masked by default instead of counted once (option `missing_classes`); the
learnt scale β is part of the logits, so probabilities are those the model was trained with. Its personal fine-tuning
stage is left out, because FedETF is compared as a global method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._label_prior import MISSING_CLASSES, MissingClasses, log_prior
from fedbm.methods.base import Batch, Facts, OwnData, Phase, Piece, State, Task
from fedbm.methods.fedavg import FedAvg, projection
from fedbm.models.heads import Classifier, CrossEntropyHead, without_autocast
from fedbm.utils.seeds import torch_rng

FRAME = "head.frame"


@dataclass(frozen=True)
class FedETF(FedAvg):
    """Fixed simplex equiangular tight frame, balanced by the client's label prior."""

    name = "fedetf"
    title = "FedETF"

    missing_classes: MissingClasses = option("mask", MISSING_CLASSES)

    def model(self, task: Task) -> nn.Module:
        body, classes = task.body(), len(task.classes)
        head = FrameHead(simplex_frame(classes, torch_rng(task.seed, "frame")))
        return Classifier(body, head, projection(body, task, classes))

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        trained = {name: value for name, value in server.items() if name != FRAME}
        return {"model": Piece(round_, trained), "frame": Piece(0, {FRAME: server[FRAME]})}

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        super().start_client(model, received, client, facts)
        return {"prior": log_prior(facts.label_counts, self.missing_classes, received[FRAME])}

    def phases(self, epochs: int) -> Sequence[Phase]:
        return (Phase(epochs, ("body", "project", "head")),)

    def loss(self, model: nn.Module, batch: Batch, context: State) -> dict[str, Tensor]:
        return {"cross_entropy": F.cross_entropy(model(batch.images) + context["prior"], batch.labels)}

    def finish_client(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        upload, own = super().finish_client(model, data, context, facts)
        del upload[FRAME]
        return upload, own


def simplex_frame(classes: int, rng: torch.Generator) -> Tensor:
    """Return V [K,K]: unit columns at equal angles, with cosine −1/(K−1)."""
    u = torch.linalg.qr(torch.randn(classes, classes, generator=rng, dtype=torch.float64)).Q
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    frame: Tensor = math.sqrt(classes / (classes - 1)) * u @ centred
    return frame.float()


class FrameHead(CrossEntropyHead):
    """Logits β gᵀV for g = norm(features), with a learnt scale β."""

    frame: Tensor

    def __init__(self, frame: Tensor) -> None:
        super().__init__()
        self.register_buffer("frame", frame)
        self.scale = nn.Parameter(torch.ones(()))

    @without_autocast
    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.scale * (F.normalize(features, dim=1) @ self.frame)
        return logits
