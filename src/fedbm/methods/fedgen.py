"""FedGen: the server learns to generate features on which the clients' heads agree; clients train their heads on them.

    h_i     head of client i;  n_{i,y} its samples of class y;  α_{i,y} = n_{i,y} / Σ_P n_y;  p̂(y) = Σ_P n_y / Σ_P n
    server  θ ← Σ_i w_i θ_i, then  min over G of E_{y~p̂, ε~N(0,I)} CE( Σ_i α_{i,y} h_i(G(y, ε)), y )
    client  min CE(x, y) + λ · E_{y~p̂, ε} CE( h(G(y, ε)), y ),   G frozen; once G is trained

Heads are linear, so the ensemble for label y is one linear map, Σ_i α_{i,y} W_i: the server stores K of them, however
many clients there are.

Reference: Zhu, Hong, Zhou. Data-free knowledge distillation for heterogeneous federated learning. ICML 2021.
Differs from the paper, in which all heads have the same weight. The weights α are those of the authors' code. That code
differs in more: docs/methods/fedgen.md. Clients send their label counts. With λ = 0 it is FedAvg to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._average import MeanWithSums
from fedbm.methods.base import Batch, Facts, OwnData, Piece, State, Steps, Task, copy_state, load_state, with_prefix
from fedbm.methods.fedavg import FedAvg, linear_head
from fedbm.models.heads import Classifier, LinearHead
from fedbm.utils.optimizers import make_adam
from fedbm.utils.seeds import seeded_modules, torch_rng

PRIOR, COUNTS = "fedgen.prior", "fedgen.counts"
NOISE, HIDDEN = 64, 256  # of the generator


@dataclass(frozen=True)
class FedGen(FedAvg):
    """A generator of features at the server; clients add its features to the training of their heads."""

    name = "fedgen"
    title = "FedGen"
    shares = ("n", "label_counts")
    server_step_uses_updates = True

    feature_weight: float = option(1.0, "weight λ of the loss on generated features; 0: none", least=0)
    feature_batch: int = option(
        32, "generated features that join each local step, and each step of the server", least=1
    )
    feature_steps: int = option(100, "Adam steps of the generator per round", least=1)
    feature_lr: float = option(3e-4, "learning rate of the generator", above=0)

    def model(self, task: Task) -> nn.Module:
        body = task.body()
        return FedGenModel(body, linear_head(body, task), task)

    def server_init(self, model: nn.Module) -> State:
        classes = model.state_dict()["head.bias"]
        return {**super().server_init(model), PRIOR: torch.full_like(classes, 1 / len(classes))}

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        pieces = {"model": Piece(round_, with_prefix(server, "body.") | with_prefix(server, "head."))}
        if self.feature_weight and bool(server["teachers.weight"].any()):  # else the generator is untrained
            pieces["generator"] = Piece(round_, {**with_prefix(server, "generator."), PRIOR: server[PRIOR]})
        return pieces

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        super().start_client(model, received, client, facts)
        bias = received["head.bias"]
        prior = received.get(PRIOR, torch.full_like(bias, 1 / len(bias)))
        return {"cumulative": prior.cpu().cumsum(0).to(bias.device)}  # CUDA has no deterministic kernel for it

    def sample_randomness(
        self, model: nn.Module, task: Task, received: State, steps: int, rng: torch.Generator
    ) -> State:
        return draw_features(steps, self.feature_batch, rng) if PRIOR in received else {}

    def precompute(self, model: FedGenModel, draws: State, context: State) -> State:
        """Generate the features of all these steps at once: the generator is frozen while a client trains."""
        if not draws:
            return draws
        labels = choose_labels(draws["uniform"], context["cumulative"])
        return {"labels": labels, "features": model.generator(labels, draws["noise"])}

    def loss(self, model: FedGenModel, batch: Batch, context: State) -> dict[str, Tensor]:
        terms = model.loss(batch.images, batch.labels)
        if batch.draws:
            generated = F.cross_entropy(model.head(batch.draws["features"]), batch.draws["labels"])
            terms["generated"] = self.feature_weight * generated
        return terms

    def finish_client(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        upload, own = super().finish_client(model, data, context, facts)
        return {**upload, COUNTS: torch.tensor(facts.label_counts).to(upload["head.bias"])}, own

    def aggregator(self, server: State, clients: int) -> MeanWithTeachers:
        return MeanWithTeachers(self.weight_of, server)

    def server_step(
        self, server: State, model: FedGenModel, task: Task, round_: int, steps: Steps
    ) -> tuple[State, dict[str, Tensor]]:
        if not self.feature_weight:
            return server, {}
        load_state(model, self.model_state(server))
        draws = draw_features(self.feature_steps, self.feature_batch, torch_rng(task.seed, "generator", round_))
        labels = choose_labels(draws.pop("uniform"), server[PRIOR].cpu().cumsum(0))
        adam = make_adam(self.feature_lr)
        losses = steps(model, ("generator",), model.generator_loss, adam, {"labels": labels, **draws})
        return {**server, **copy_state(model, ("generator",))}, losses


def draw_features(steps: int, batch: int, rng: torch.Generator) -> State:
    """Draw what *steps* batches of generated features are made of: numbers that choose labels, and noise."""
    uniform = torch.rand(steps, batch, generator=rng)
    return {"uniform": uniform, "noise": torch.randn(steps, batch, NOISE, generator=rng)}


def choose_labels(uniform: Tensor, cumulative: Tensor) -> Tensor:
    """Return labels with the probabilities that *cumulative* [K] sums up, from numbers in [0,1).

    >>> choose_labels(torch.tensor([0.1, 0.3, 0.9]), torch.tensor([0.25, 0.25, 1.0]))
    tensor([0, 2, 2])
    """
    scaled = uniform.to(cumulative.dtype) * cumulative[-1]  # which is 1 up to rounding
    return torch.searchsorted(cumulative, scaled, right=True).clamp_max(len(cumulative) - 1)


class MeanWithTeachers(MeanWithSums):
    """FedAvg's mean; for each label, the mean of the heads weighted by the clients' samples of that label."""

    own = (COUNTS,)

    def terms(self, state: State) -> State:
        counts = state[COUNTS].double()
        weight = counts[:, None, None] * state["head.weight"].double()
        return {COUNTS: counts, "weight": weight, "bias": counts[:, None] * state["head.bias"].double()}

    def result(self) -> State:
        new, counts = super().result(), self.sums[COUNTS]
        dtype, share = new[PRIOR].dtype, 1 / counts.clamp_min(1)
        return {
            **new,
            "teachers.weight": (share[:, None, None] * self.sums["weight"]).to(dtype),
            "teachers.bias": (share[:, None] * self.sums["bias"]).to(dtype),
            PRIOR: (counts / counts.sum()).to(dtype),
        }


class FedGenModel(Classifier):
    """body and head, with the generator and the ensembles that teach it."""

    def __init__(self, body: nn.Module, head: LinearHead, task: Task) -> None:
        super().__init__(body, head)
        with seeded_modules(task.seed, "generator"):
            self.generator = FeatureGenerator(head.out_features, head.in_features)
        self.teachers = Teachers(head.out_features, head.in_features)

    def generator_loss(self, draws: State) -> dict[str, Tensor]:
        """Return the ensemble's cross-entropy on generated features."""
        labels = draws["labels"]
        return {"ensemble": F.cross_entropy(self.teachers(self.generator(labels, draws["noise"]), labels), labels)}


class FeatureGenerator(nn.Module):
    """G(y, ε): a one-hot label and noise → features."""

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.classes = classes
        self.expand, self.out = nn.Linear(NOISE + classes, HIDDEN), nn.Linear(HIDDEN, features)

    def forward(self, labels: Tensor, noise: Tensor) -> Tensor:
        given = torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=-1)
        features: Tensor = self.out(F.relu(self.expand(given)))
        return features


class Teachers(nn.Module):
    """The ensemble of heads for each label: weights [K,K,F] and biases [K,K]."""

    weight: Tensor
    bias: Tensor

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(classes, classes, features))
        self.register_buffer("bias", torch.zeros(classes, classes))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        votes = (self.weight[labels] * features[:, None]).sum(dim=2)  # not a matrix product, which autocast would round
        return votes + self.bias[labels]
