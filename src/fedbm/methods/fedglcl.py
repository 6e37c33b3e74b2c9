"""FedGLCL: a frozen classifier of text embeddings; image features learn to point at the text of their class.

    z_k     = t · norm(P f(x))·T_k,  T_k the mean embedding of the prompts of class k, frozen;  P linear F → D, trained
    client  min CE(z, y)  = the contrast of an image with the texts of all classes
    server  as FedAvg, over body and P

It is FedBM with classifier = mean and generator = no, for the same text and τ = t.

Reference: Yan, Feng, Zuo, Khan, Zhu, Liu. On the importance of language-driven representation learning for
heterogeneous federated learning. ICLR 2025.
Differs from the authors' code: the text is this package's (FedBM's concepts, prompts and encoder). T_k is a mean of
unit vectors, which is not normalised again. No BatchNorm or ReLU follows P.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.errors import FedBMError
from fedbm.methods.base import Phase, Piece, State, Task
from fedbm.methods.fedavg import FedAvg, projection
from fedbm.models.heads import Classifier, CrossEntropyHead, without_autocast

TEXT = "head.text"


@dataclass(frozen=True)
class FedGLCL(FedAvg):
    """Contrast of image features with frozen text embeddings."""

    name = "fedglcl"
    title = "FedGLCL"
    needs_concepts = True

    logit_scale: float = option(1 / 0.07, "scale t of the cosines between images and texts; by default 1/0.07", above=0)

    def model(self, task: Task) -> nn.Module:
        if task.concepts is None:
            raise FedBMError("FedGLCL needs concept distributions for the classes of this data set")
        body, text = task.body(), task.concepts.mean
        return Classifier(body, TextHead(text, self.logit_scale), projection(body, task, text.shape[1]))

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        trained = {name: value for name, value in server.items() if name != TEXT}
        return {"model": Piece(round_, trained), "text": Piece(0, {TEXT: server[TEXT]})}

    def phases(self, epochs: int) -> Sequence[Phase]:
        return (Phase(epochs, ("body", "project")),)


class TextHead(CrossEntropyHead):
    """Logits t · h·T_k for h = norm(features) and frozen texts T."""

    text: Tensor

    def __init__(self, text: Tensor, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("text", text.clone())

    @without_autocast
    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=1) @ self.text.T
