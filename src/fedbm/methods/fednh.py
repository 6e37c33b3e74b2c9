"""FedNH: a classifier of unit prototypes. They start evenly spread and slowly move towards the class means.

    z_k     = s · cos(f(x), W_k);  W fixed in local training, orthonormal rows at the start, s learnable from 20
    client  sends body, s and, in eval mode after training, r_{i,k} = n_{i,k} · norm(mean_k f/‖f‖)
    server  body, statistics and s: plain mean;
            W_k ← norm(ρ W_k + (1−ρ) · norm(Σ_i r_{i,k} / Σ_i n_{i,k}));  a class nobody had this round stays

Reference: Dai, Chen, Li, Heinecke, Sun, Xu. Tackling data heterogeneity in federated learning with class prototypes.
AAAI 2023.
Needs at least as many features as classes. Clients send their label counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.errors import FedBMError
from fedbm.methods._average import MeanWithSums, class_means
from fedbm.methods.base import Facts, OwnData, State, Task
from fedbm.methods.fedavg import FedAvg
from fedbm.models.heads import Classifier, CrossEntropyHead, feature_dim, without_autocast
from fedbm.utils.seeds import torch_rng

SUMS, COUNTS = "fednh.sums", "fednh.counts"


@dataclass(frozen=True)
class FedNH(FedAvg):
    """A classifier of prototypes, which the server moves towards the mean features of the classes."""

    name = "fednh"
    title = "FedNH"
    shares = ("n", "label_counts")
    class_statistics = "the mean of the features of each class"

    weighting: Literal["equal"] = option("equal", "clients count equally, as the method is defined")
    rho: float = option(0.9, "share ρ of the old prototype that stays each round", least=0, most=1)

    def model(self, task: Task) -> nn.Module:
        body = task.body()
        features, classes = feature_dim(body, task.shape), len(task.classes)
        if classes > features:
            raise FedBMError(
                f"FedNH needs at least as many features as classes, but the body has {features} features for {classes} "
                "classes. Use a larger width"
            )
        drawn = torch.randn(features, classes, generator=torch_rng(task.seed, "prototypes"), dtype=torch.float64)
        return Classifier(body, CosineHead(torch.linalg.qr(drawn).Q.T.float()))

    def finish_client(self, model: Classifier, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        upload, own = super().finish_client(model, data, context, facts)
        prototypes = upload.pop("head.weight")  # fixed at the client
        means, counts = class_means(model, lambda x: F.normalize(model.features(x), dim=1), data, prototypes)
        return {**upload, SUMS: counts[:, None] * F.normalize(means, dim=1), COUNTS: counts}, own

    def aggregator(self, server: State, clients: int) -> MeanWithPrototypes:
        return MeanWithPrototypes(self, server)


class MeanWithPrototypes(MeanWithSums):
    """A plain mean of body, statistics and s; W moves towards the clients' class means."""

    own = (SUMS, COUNTS)

    def __init__(self, method: FedNH, server: State) -> None:
        super().__init__(method.weight_of, server)
        self.rho = method.rho

    def result(self) -> State:
        weight, counts = self.server["head.weight"], self.sums[COUNTS][:, None]
        old, seen = weight.double(), F.normalize(self.sums[SUMS] / counts.clamp_min(1), dim=1)
        mixed = F.normalize(self.rho * old + (1 - self.rho) * seen, dim=1)
        return {**super().result(), "head.weight": torch.where(counts > 0, mixed, old).to(weight.dtype)}


class CosineHead(CrossEntropyHead):
    """s · cos(f, W_k): fixed rows, one learnable scale."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.scale = nn.Parameter(torch.tensor(20.0))

    @without_autocast
    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=1) @ self.weight.T
