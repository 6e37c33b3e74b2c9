"""FedBM: a frozen classifier built from language (LKCC) and a generator that represents all clients' data (CGDE).

    client   min over body and projection of the LKCC loss on real ∪ generated images, one forward pass
    server   θ ← Σ_i w_i θ_i; every n rounds min over the generator of L_sem + λ_div L_div + λ_dis L_dis
    z        = μ_y + (E_y − μ_y)ᵀ ε_M/√(M−1) + 0.01 ε_D, labels y uniform: conditions drawn from the concepts

L_sem is the classifier's own loss of the augmented generated images under the global model in eval mode; the others
are in `models/generator_loss.py`, LKCC in `models/heads.py`. Ablations are options: `classifier`, `generator`,
`condition`, `lambda_div`, `lambda_dis`, `pseudo_batch`, `pseudo_in`; with classifier = trained and generator = no it is
FedAvg.

Reference: Zhu, Yang, Gao, Yuan, Liu. FedBM: stealing knowledge from pre-trained language models for heterogeneous
federated learning.
Differs from the paper's print: clients are weighted by size (as its code does; weighting = equal for its formula);
L_sem has the variance term (its code; Eq. 6 is cross-entropy alone); L_dis matches the global model's BatchNorm
statistics (the paper's text names the generator's); generated images are cropped and flipped; the generator is trained
for the first time after n rounds, not before the first; clients generate new images in each step, not once per round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.errors import FedBMError
from fedbm.language.concept_distribution import sample_concepts
from fedbm.methods.base import Batch, Phase, Piece, State, Steps, Task, copy_state, load_state, move_to
from fedbm.methods.fedavg import FedAvg, linear_head, projection
from fedbm.models.generator import Generator
from fedbm.models.generator_loss import BatchNormGap, batch_norms, crop, diversity_loss, draw_crops
from fedbm.models.heads import Classifier, ConceptHead, LinearHead
from fedbm.utils.optimizers import make_adam
from fedbm.utils.seeds import seeded_modules, torch_rng


@dataclass(frozen=True)
class FedBM(FedAvg):
    """Language-built frozen classifier plus concept-guided generator; every ablation of the paper by option.

    `fedbm config` prints the meaning of each option.

    Example:
        >>> FedBM(temperature=5, generator=False).needs_concepts
        True
    """

    name = "fedbm"
    title = "FedBM"
    option_needs: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]] = {
        "temperature": ("classifier", ("distribution", "mean")),
        **dict.fromkeys(("condition", "pseudo_batch", "pseudo_in", "lambda_div", "lambda_dis"), ("generator", (True,))),
        **dict.fromkeys(("generator_every", "generator_steps", "generator_batch"), ("generator", (True,))),
        **dict.fromkeys(("generator_lr", "generator_width"), ("generator", (True,))),
    }

    classifier: Literal["distribution", "mean", "random", "trained"] = option(
        "distribution",
        "made from concept Gaussians (LKCC), from their means alone, random and frozen, or linear and trained",
    )
    temperature: float = option(12.5, "τ of the concept classifier", above=0)
    generator: bool = option(True, "train a generator and mix its images into local batches (CGDE)")
    condition: Literal["concepts", "noise", "noise+label"] = option(
        "concepts", "what the generator is given: concept samples, noise alone, or noise and a one-hot label"
    )
    pseudo_batch: int = option(16, "generated images that join each local batch", least=1)
    pseudo_in: Literal["loss", "statistics"] = option(
        "loss", "generated images count in BatchNorm's batch statistics and in the local loss, or in statistics alone"
    )
    lambda_div: float = option(1.0, "weight of the diversity term", least=0)
    lambda_dis: float = option(0.1, "weight of the BatchNorm-statistics term (0 with GroupNorm)", least=0)
    generator_every: int = option(5, "rounds between generator trainings", least=1)
    generator_steps: int = option(100, "Adam steps per generator training", least=1)
    generator_batch: int = option(64, "generated images per generator step", least=2)
    generator_lr: float = option(3e-4, "learning rate of the generator", above=0)
    generator_width: int = option(128, "channels of the generator's first blocks", least=4)

    @property
    def needs_concepts(self) -> bool:
        return self.generator or self.classifier in ("distribution", "mean")

    def model(self, task: Task) -> nn.Module:
        return FedBMModel(self, task)

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        groups: dict[str, State] = {"model": {}, "concepts": {}, "generator": {}}
        for name, value in server.items():
            is_trained, is_generator = name.partition(".")[0] in self.trained_parts, name.startswith("generator")
            groups["model" if is_trained else "generator" if is_generator else "concepts"][name] = value
        pieces = {"model": Piece(round_, groups["model"])}
        if groups["concepts"]:
            pieces["concepts"] = Piece(0, groups["concepts"])
        if self.generator and (trained_at := int(server["generator_round"])):
            pieces["generator"] = Piece(trained_at, groups["generator"])
        return pieces

    def phases(self, epochs: int) -> Sequence[Phase]:
        parts = {"trained": ("body", "head"), "random": ("body",)}.get(self.classifier, ("body", "project"))
        return (Phase(epochs, parts),)

    def sample_randomness(
        self, model: FedBMModel, task: Task, received: State, steps: int, rng: torch.Generator
    ) -> State:
        if "generator_round" not in received:  # before the first generator training
            return {}
        return model.draw_pseudo(steps, self.pseudo_batch, rng)

    def precompute(self, model: FedBMModel, draws: State, context: State) -> State:
        """Generate the images of all these steps at once: the generator is frozen while a client trains."""
        if not draws:
            return draws
        crops = {name: draws[name] for name in ("pseudo.rows", "pseudo.columns")}
        labels = draws["pseudo.labels"]
        images, _ = model.generate({name: value.flatten(0, 1) for name, value in draws.items() if name not in crops})
        return {"pseudo.labels": labels, "pseudo.images": images.view(*labels.shape, *images.shape[1:]), **crops}

    def loss(self, model: FedBMModel, batch: Batch, context: State) -> dict[str, Tensor]:
        if not batch.draws:
            return model.loss(batch.images, batch.labels)
        images = torch.cat([batch.images, model.look(batch.draws["pseudo.images"], batch.draws)])
        if self.pseudo_in == "statistics":
            return model.head.loss(model.features(images)[: len(batch.images)], batch.labels)
        return model.loss(images, torch.cat([batch.labels, batch.draws["pseudo.labels"]]))

    def server_step(
        self, server: State, model: FedBMModel, task: Task, round_: int, steps: Steps
    ) -> tuple[State, dict[str, Tensor]]:
        if not self.generator or round_ % self.generator_every:
            return server, {}
        load_state(model, server)
        adam, rng = make_adam(self.generator_lr, (0.5, 0.999)), torch_rng(task.seed, "generator", round_)
        draws = model.draw_pseudo(self.generator_steps, self.generator_batch, rng)
        losses = steps(model, ("generator",), lambda row: self.generator_loss(model, row), adam, draws)
        trained_at = torch.full_like(server["generator_round"], round_)
        return {**server, **copy_state(model, ("generator",)), "generator_round": trained_at}, losses

    def generator_loss(self, model: FedBMModel, draws: State) -> dict[str, Tensor]:
        """Return {semantic: L_sem, diversity: λ_div L_div, distribution: λ_dis L_dis} without terms of weight 0."""
        images, conditions = model.generate(draws)
        labels = draws["pseudo.labels"]
        with BatchNormGap.of(model.body) as gap:
            semantic = model.loss(model.look(images, draws), labels)
        terms = {"semantic": torch.stack(list(semantic.values())).sum()}
        if self.lambda_div:
            terms["diversity"] = self.lambda_div * diversity_loss(images, conditions, labels, model.classes)
        if self.lambda_dis:
            terms["distribution"] = self.lambda_dis * gap.loss()
        return terms

    def sample_images(self, model: FedBMModel, task: Task, columns: int) -> Tensor | None:
        if not self.generator or self.condition == "noise" or not int(model.generator_round):
            return None  # noise alone has no class
        draws = model.draw_pseudo(1, columns * model.classes, torch_rng(task.seed, "gallery"))
        draws["pseudo.labels"] = torch.arange(model.classes).repeat_interleave(columns)[None]
        draws = {name: value[0] for name, value in move_to(draws, model.generator.expand.weight).items()}
        model.eval()
        with torch.no_grad():
            images = model.generate(draws)[0]
        return images.view(model.classes, columns, *task.shape)


class FedBMModel(Classifier):
    """body → projection → concept head, with the generator and the embeddings it is conditioned on."""

    generator_round: Tensor

    def __init__(self, method: FedBM, task: Task) -> None:
        body, concepts = task.body(), task.concepts
        if method.needs_concepts and concepts is None:
            raise FedBMError("FedBM needs concept distributions for the classes of this data set")
        uses_statistics = method.lambda_dis or method.pseudo_in == "statistics"
        if method.generator and uses_statistics and not batch_norms(body):
            raise FedBMError("a body without BatchNorm has no statistics: set lambda_dis = 0 and pseudo_in = loss")
        head: ConceptHead | LinearHead
        if method.classifier in ("distribution", "mean"):
            assert concepts is not None
            variance = concepts.variance if method.classifier == "distribution" else torch.zeros_like(concepts.mean)
            head = ConceptHead(concepts.mean, variance, method.temperature)
            super().__init__(body, head, projection(body, task, concepts.mean.shape[1]))
        else:
            super().__init__(body, linear_head(body, task))
        self.classes, self.condition = len(task.classes), method.condition
        self.size, self.hflip, self.vflip = task.shape[1], task.hflip, task.vflip
        self.normalise = task.normalise()
        if method.generator:
            assert concepts is not None
            _, self.prompts, self.dim = concepts.embeddings.shape
            if self.condition == "concepts":
                self.concepts = nn.Module()
                self.concepts.register_buffer("embeddings", concepts.embeddings.clone())
            wide = self.dim + (self.classes if self.condition == "noise+label" else 0)
            with seeded_modules(task.seed, "generator"):
                self.generator = Generator(wide, task.shape[0], self.size, method.generator_width)
            self.register_buffer("generator_round", torch.zeros((), dtype=torch.int64))

    def draw_pseudo(self, steps: int, batch: int, rng: torch.Generator) -> State:
        """Draw labels, noise and crops of *steps* batches of generated images."""
        draws = {"pseudo.labels": torch.randint(0, self.classes, (steps, batch), generator=rng)}
        if self.condition == "concepts":
            draws["pseudo.prompts"] = torch.randn(steps, batch, self.prompts, generator=rng)
        draws["pseudo.noise"] = torch.randn(steps, batch, self.dim, generator=rng)
        draws["pseudo.rows"], draws["pseudo.columns"] = draw_crops(self.size, self.hflip, self.vflip, steps, rng)
        return draws

    def generate(self, draws: State) -> tuple[Tensor, Tensor]:
        """Return images in [0,1] and the conditions they were generated from."""
        labels, noise = draws["pseudo.labels"], draws["pseudo.noise"]
        if self.condition == "concepts":
            z = sample_concepts(self.concepts.get_buffer("embeddings"), labels, draws["pseudo.prompts"], noise)
        elif self.condition == "noise":
            z = noise
        else:
            z = torch.cat([noise, nn.functional.one_hot(labels, self.classes).to(noise.dtype)], dim=1)
        return self.generator(z), z

    def look(self, images: Tensor, draws: State) -> Tensor:
        """Crop, flip and normalise generated images for the body."""
        return self.normalise.forward(crop(images, draws["pseudo.rows"], draws["pseudo.columns"]))
