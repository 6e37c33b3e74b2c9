"""FedProto: only class prototypes are sent; every client keeps its own model.

    client  min CE + λ · MSE(f(x), C_y), mean over batch and dimensions, classes without a prototype left out;
            sends, in eval mode after training, the mean feature of each of its classes
    server  C_k ← count-weighted mean over clients that have class k; a class nobody had this round keeps its own
    predict the nearest prototype, Euclidean

Reference: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: federated prototype learning across heterogeneous clients.
AAAI 2022.
Differs from the paper's print: C_k is a mean (Eq. 6 divides it once more by the number of clients that have class k),
and the distance is of each sample's features, squared (Eq. 8: of class means). Clients send their label counts.
There is no common model. The global score is the mean, over clients that took part so far, of their models' scores on
the common test set, which only a simulation has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._average import MeanWithSums, class_means
from fedbm.methods.base import Batch, Facts, OwnData, Piece, State
from fedbm.methods.fedavg import FedAvg
from fedbm.models.heads import Classifier, LinearHead

MEANS, COUNTS = "fedproto.means", "fedproto.counts"


class Prototypes(nn.Module):
    """C [K,F], and which classes have one."""

    value: Tensor
    known: Tensor

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(classes, features))
        self.register_buffer("known", torch.zeros(classes, dtype=torch.bool))


class ProtoModel(Classifier):
    """body and head of one client, with the prototypes it received."""

    def __init__(self, body: nn.Module, head: LinearHead) -> None:
        super().__init__(body, head)
        self.prototypes = Prototypes(head.out_features, head.in_features)

    def forward(self, images: Tensor) -> Tensor:
        """Return −‖f(x) − C_k‖². A class without a prototype cannot be predicted."""
        # Matrix products in TF32 would round the squared norms differently for each class.
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(self.features(images), self.prototypes.value, compute_mode=exact)
        return torch.where(self.prototypes.known, -distance.square(), -torch.inf)


@dataclass(frozen=True)
class FedProto(FedAvg):
    """Prototypes instead of weights."""

    name = "fedproto"
    title = "FedProto"
    shares = ("n", "label_counts")
    class_statistics = "the mean of the features of each class"
    personalises = True
    model_class = ProtoModel
    local_parts = ("body", "head")
    common_model = False

    weighting: Literal["size"] = option("size", "prototypes count by their samples, as the method is defined")
    lambda_proto: float = option(1.0, "weight λ of the distance to the global prototype", least=0)

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        return {"prototypes": Piece(round_, server)}

    def loss(self, model: ProtoModel, batch: Batch, context: State) -> dict[str, Tensor]:
        features = model.features(batch.images)
        gap = (features - model.prototypes.value[batch.labels]).square().mean(dim=1)
        known = model.prototypes.known[batch.labels].to(gap.dtype)
        return {
            "cross_entropy": F.cross_entropy(model.head(features), batch.labels),
            "prototype": self.lambda_proto * (known * gap).mean(),
        }

    def finish_client(self, model: ProtoModel, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        means, counts = class_means(model, model.features, data, model.prototypes.value)
        return {MEANS: means, COUNTS: counts}, super().finish_client(model, data, context, facts)[1]

    def aggregator(self, server: State, clients: int) -> PrototypeMean:
        return PrototypeMean(self.weight_of, server)


class PrototypeMean(MeanWithSums):
    """C_k ← the count-weighted mean over clients that have class k; a class without samples keeps its prototype."""

    own = (MEANS, COUNTS)

    def terms(self, state: State) -> State:
        counts = state[COUNTS].double()
        return {COUNTS: counts, MEANS: counts[:, None] * state[MEANS].double()}

    def result(self) -> State:
        old, counts = self.server["prototypes.value"], self.sums[COUNTS]
        mean = (self.sums[MEANS] / counts.clamp_min(1)[:, None]).to(old.dtype)
        return {
            "prototypes.value": torch.where(counts[:, None] > 0, mean, old),
            "prototypes.known": self.server["prototypes.known"] | (counts > 0),
        }
