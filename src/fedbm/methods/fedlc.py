"""FedLC: logits are calibrated by the client's label counts, so that rare classes need a larger margin.

    client  min CE(z_c − τ n_{i,c}^{−1/4}, y)
    server  as FedAvg;   predict argmax z_c, without calibration

The margin between two classes is τ (n_y^{−1/4} − n_c^{−1/4}). A class that the client does not have is left out of the
softmax: the limit n → 0 of the formula.

Reference: Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated learning with label distribution skew via logits calibration.
ICML 2022.
Differs from the paper, which prints the softmax's sum without the true class. With τ = 0 it masks nothing and is FedAvg
to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._label_prior import MISSING_CLASSES, MissingClasses, held_counts
from fedbm.methods.base import Batch, Facts, State
from fedbm.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedLC(FedAvg):
    """Cross-entropy on logits that are calibrated by the client's label counts."""

    name = "fedlc"
    title = "FedLC"

    tau: float = option(1.0, "strength τ of the calibration by label counts; 0: none", least=0)
    missing_classes: MissingClasses = option("mask", MISSING_CLASSES)

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        super().start_client(model, received, client, facts)
        return {"margin": label_margins(facts.label_counts, self.missing_classes, received["head.weight"], self.tau)}

    def loss(self, model: nn.Module, batch: Batch, context: State) -> dict[str, Tensor]:
        return {"cross_entropy": F.cross_entropy(model(batch.images) - context["margin"], batch.labels)}


def label_margins(counts: tuple[int, ...], missing_classes: MissingClasses, like: Tensor, tau: float) -> Tensor:
    """Return τ n_c^{−1/4} [K], in the precision and on the device of *like*; infinite for a masked class.

    >>> label_margins((16, 1, 0), "mask", torch.zeros(()), 1.0)
    tensor([0.5000, 1.0000,    inf])
    """
    held = held_counts(counts, missing_classes, like)
    return tau * held.pow(-0.25) if tau else torch.zeros_like(held)
