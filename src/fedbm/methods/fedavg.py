"""FedAvg: clients train the shared model on their own data; the server takes the mean.

    θ ← Σ_i w_i θ_i,   w_i = n_i / Σ_P n        (or 1/|P| with weighting = equal)

over parameters and BatchNorm statistics; BatchNorm's integer counter keeps the maximum.

Reference: McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017.
Differs from common code: statistics are averaged in float64 and counters are not averaged; the last batch of an epoch
wraps to the start of its permutation, so that every step has B samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._average import WeightedMean
from fedbm.methods.base import Aggregator, Batch, Method, State, Task, Upload
from fedbm.models.heads import Classifier, LinearHead, feature_dim
from fedbm.utils.seeds import seeded_modules


@dataclass(frozen=True)
class FedAvg(Method):
    """Weighted averaging of locally trained models.

    Args:
        weighting: "size" weights clients by their number of samples, "equal" equally.

    Example:
        >>> FedAvg(weighting="equal")
        FedAvg(weighting='equal')
    """

    name = "fedavg"
    title = "FedAvg"
    model_class: ClassVar[Callable[..., nn.Module]] = Classifier  # made of a body and a linear head

    weighting: Literal["size", "equal"] = option("size", "weight clients by their number of samples, or equally")

    def model(self, task: Task) -> nn.Module:
        body = task.body()
        return self.model_class(body, linear_head(body, task))

    def loss(self, model: Any, batch: Batch, context: State) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = model.loss(batch.images, batch.labels, batch.label_smoothing)
        return terms

    def aggregator(self, server: State, clients: int) -> Aggregator:
        return WeightedMean(self.weight_of, server)

    def weight_of(self, upload: Upload) -> float:
        """Return the client's weight in means."""
        return float(upload.n) if self.weighting == "size" else 1.0


def linear_head(body: nn.Module, task: Task) -> LinearHead:
    """Build the initial linear head F → K from its own seed stream, so that it is equal for all methods."""
    features = feature_dim(body, task.shape)
    with seeded_modules(task.seed, "head"):
        return LinearHead(features, len(task.classes))


def projection(body: nn.Module, task: Task, width: int) -> nn.Linear:
    """Build the initial linear layer F → *width* from its own seed stream."""
    with seeded_modules(task.seed, "project"):
        return nn.Linear(feature_dim(body, task.shape), width)
