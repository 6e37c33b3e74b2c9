"""CCVR: FedAvg, with a classifier that the server re-trains on virtual features before the model is scored.

    client  trains as in FedAvg; of the received body, in eval mode, it sends each class's count n_{i,k}, and mean
            μ_{i,k} and covariance Σ_{i,k} of its features
    server  θ ← Σ_i w_i θ_i, as FedAvg; training does not use what follows
            μ_k = Σ_i n_{i,k} μ_{i,k} / n_k
            Σ_k = ( Σ_i (n_{i,k} − 1) Σ_{i,k} + Σ_i n_{i,k} μ_{i,k} μ_{i,k}ᵀ − n_k μ_k μ_kᵀ ) / (n_k − 1)
            head* = argmin over the head, from the received one, of CE on z ~ N(μ_y, Σ_y), y drawn by n_k
    score   the received body with head*

The scored model of round t is therefore FedAvg's of round t − 1, calibrated by the clients of round t. A class that
nobody had this round keeps its Gaussian and its count.

Reference: Luo, Chen, Hu, Zhang, Liang, Feng. No fear of heterogeneity: classifier calibration for federated learning
with non-IID data. NeurIPS 2021.
Differs from the paper: it calibrates once, after training, in an extra exchange with all clients; here every round is
calibrated, by the clients of the next round, so that rounds can be compared. Clients send their label counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._average import MeanWithSums
from fedbm.methods.base import Facts, OwnData, Piece, State, Steps, Task, copy_state, load_state, with_prefix
from fedbm.methods.fedavg import FedAvg
from fedbm.models.heads import Classifier
from fedbm.utils.optimizers import make_adam
from fedbm.utils.seeds import torch_rng

MEAN, COVARIANCE, COUNTS = "ccvr.mean", "ccvr.covariance", "ccvr.counts"
TRAINED = "ccvr.trained."  # FedAvg's model; body.… and head.… are the calibrated one


@dataclass(frozen=True)
class CCVR(FedAvg):
    """Classifier calibration with virtual features from each class's Gaussian."""

    name = "ccvr"
    title = "CCVR"
    shares = ("n", "label_counts")
    class_statistics = "the mean and covariance of the features of each class"
    server_step_uses_updates = True

    calibration_steps: int = option(200, "Adam steps of the head on virtual features per round", least=1)
    calibration_batch: int = option(64, "virtual features per calibration step", least=1)
    calibration_lr: float = option(1e-3, "learning rate of the calibration (Adam)", above=0)

    def server_init(self, model: nn.Module) -> State:
        state = super().server_init(model)
        classes, features = state["head.weight"].shape
        zeros = {MEAN: (classes, features), COVARIANCE: (classes, features, features), COUNTS: (classes,)}
        gaussians = {name: state["head.weight"].new_zeros(shape) for name, shape in zeros.items()}
        copies = {TRAINED + name: value.clone() for name, value in self.copy_trained(model)[0].items()}
        return {**state, **gaussians, **copies}

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        return {**super().broadcast(server, round_), "trained": Piece(round_, with_prefix(server, TRAINED))}

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        # frozen layers have no copy
        trained = {**self.model_state(received), **with_prefix(received, TRAINED, "")}
        super().start_client(model, trained, client, facts)
        return with_prefix(trained, "body.")

    def finish_client(self, model: Classifier, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        state, own = super().finish_client(model, data, context, facts)
        load_state(model, context)
        gaussians = class_gaussians(model, data, len(facts.label_counts))
        return {**with_prefix(state, "", TRAINED), **gaussians}, own

    def aggregator(self, server: State, clients: int) -> MeanWithGaussians:
        return MeanWithGaussians(self.weight_of, server)

    def server_step(
        self, server: State, model: Classifier, task: Task, round_: int, steps: Steps
    ) -> tuple[State, dict[str, Tensor]]:
        load_state(model, self.model_state(server))
        draws = self.draw_virtual_features(server, torch_rng(task.seed, "calibration", round_))
        adam = make_adam(self.calibration_lr)
        losses = steps(model, ("head",), lambda row: model.head.loss(row["features"], row["labels"]), adam, draws)
        return {**server, **copy_state(model, ("head",))}, {"calibration": losses["cross_entropy"]}

    def draw_virtual_features(self, server: State, rng: torch.Generator) -> State:
        """Draw labels by the classes' counts [steps,B], and features from their Gaussians [steps,B,F], on the CPU."""
        shape = (self.calibration_steps, self.calibration_batch)
        counts, mean = server[COUNTS].cpu().double(), server[MEAN].double()
        labels = torch.multinomial(counts, shape[0] * shape[1], replacement=True, generator=rng)
        noise = torch.randn(len(labels), mean.shape[1], generator=rng).to(mean)
        # the symmetric root: unlike a factor of eigenvectors, it does not depend on the device
        values, vectors = torch.linalg.eigh(server[COVARIANCE].double())
        root = (vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT
        features = torch.empty_like(noise)
        for label in range(len(counts)):
            chosen = labels == label
            features[chosen] = mean[label] + noise[chosen] @ root[label]
        return {"labels": labels.view(shape), "features": features.view(*shape, -1).cpu()}


def class_gaussians(model: Classifier, data: OwnData, classes: int) -> State:
    """Return count [K], mean [K,F] and unbiased covariance [K,F,F] of each class's features; 0 where undefined."""
    model.eval()
    counts, sums, squares = (torch.zeros(()) for _ in range(3))
    with torch.no_grad():
        for images, labels in data.batches():
            found = model.features(images).double()
            member = nn.functional.one_hot(labels, classes).to(found)
            of_class = member.T[:, :, None] * found  # [K,B,F]
            counts = counts.to(found) + member.sum(0)
            sums = sums.to(found) + of_class.sum(1)
            squares = squares.to(found) + of_class.mT @ found
    mean = sums / counts.clamp_min(1)[:, None]
    spread = squares - counts[:, None, None] * outer(mean)
    dtype = next(model.parameters()).dtype
    covariance = spread / (counts - 1).clamp_min(1)[:, None, None]
    return {COUNTS: counts.to(dtype), MEAN: mean.to(dtype), COVARIANCE: covariance.to(dtype)}


def outer(mean: Tensor) -> Tensor:
    """Return μ μᵀ [K,F,F] of means [K,F]."""
    return mean[:, :, None] * mean[:, None, :]


class MeanWithGaussians(MeanWithSums):
    """FedAvg's mean, and the Gaussian of each class over all clients of the round."""

    own = (COUNTS, MEAN, COVARIANCE)

    def terms(self, state: State) -> State:
        counts, mean, covariance = (state[name].double() for name in self.own)
        within = (counts - 1).clamp_min(0)[:, None, None] * covariance
        squares = within + counts[:, None, None] * outer(mean)
        return {COUNTS: counts, MEAN: counts[:, None] * mean, COVARIANCE: squares}

    def result(self) -> State:
        new, (counts, sums, squares) = super().result(), (self.sums[name] for name in self.own)
        mean = sums / counts.clamp_min(1)[:, None]
        covariance = (squares - counts[:, None, None] * outer(mean)) / (counts - 1).clamp_min(1)[:, None, None]
        for name, value in zip(self.own, (counts, mean, covariance), strict=True):
            old = self.server[name]
            seen = (counts > 0).view(-1, *[1] * (old.dim() - 1))
            new[name] = torch.where(seen, value.to(old.dtype), old)
        received = {name: value.clone() for name, value in with_prefix(self.server, TRAINED, "").items()}
        return {**new, **received}  # server_step() calibrates the head that clients received
