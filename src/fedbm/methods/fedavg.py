"""FedAvg: clients train the shared model on their own data; the server takes the mean.

    θ ← Σ_i w_i θ_i,   w_i = n_i / Σ_P n        (or 1/|P| with weighting = equal)

over parameters and BatchNorm statistics alike; BatchNorm's integer counter keeps the maximum.

Reference: McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017.
Differs from common code: statistics are averaged in float64 and counters are not averaged; the last batch of an epoch
wraps to the start of its permutation, so that every step has B samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedbm.config.options import option
from fedbm.methods._average import Average
from fedbm.methods.base import (
    Batch,
    Facts,
    Folding,
    OwnData,
    Part,
    Phase,
    State,
    Steps,
    Task,
    Upload,
    copy_state,
    load_state,
)
from fedbm.models.heads import Classifier, LinearHead, feature_dim
from fedbm.utils.seeds import seeded_modules


@dataclass(frozen=True)
class FedAvg:
    """Weighted averaging of locally trained models; every hook of the contract in its plainest form."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    shares: ClassVar[tuple[str, ...]] = ("n",)
    central: ClassVar[bool] = False
    personalises: ClassVar[bool] = False
    has_global_model: ClassVar[bool] = True
    colour: ClassVar[int | None] = None
    tuned: ClassVar[Mapping[str, str]] = {}

    weighting: Literal["size", "equal"] = option("size", "weight clients by their number of samples, or equally")

    @property
    def needs_concepts(self) -> bool:
        return False

    @property
    def ensemble(self) -> bool:
        return False

    def model(self, task: Task) -> nn.Module:
        body = task.body()
        return Classifier(body, linear_head(body, task))

    def server_init(self, model: nn.Module) -> State:
        return copy_state(model)

    def parts(self, server: State, round_: int) -> dict[str, Part]:
        return {"model": Part(round_, self.model_state(server))}

    def model_state(self, state: State) -> State:
        """Without what is the method's own: names that begin with the method's name."""
        return {name: value for name, value in state.items() if not name.startswith(f"{self.name}.")}

    def client_init(self, task: Task, facts: Facts) -> State:
        return {}

    def begin(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        load_state(model, self.model_state(received))
        return {}

    def phases(self, epochs: int) -> Sequence[Phase]:
        return (Phase(epochs, ("body", "head")),)

    def draws(self, model: nn.Module, task: Task, received: State, steps: int, rng: torch.Generator) -> State:
        return {}

    def precompute(self, model: nn.Module, draws: State, context: State) -> State:
        return draws

    def loss(self, model: nn.Module, batch: Batch, context: State) -> dict[str, Tensor]:
        assert isinstance(model, Classifier)
        return model.loss(batch.images, batch.labels)

    def adjust(self, model: nn.Module, context: State) -> None:
        pass

    def finish(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        trained = {part for phase in self.phases(1) for part in phase.train}
        return copy_state(model, tuple(trained)), {}

    def fold(self, server: State, clients: int) -> Folding:
        average = Average()
        while upload := (yield):
            average.add(upload.state, self.weight_of(upload))
        return {**server, **average.result()}

    def weight_of(self, upload: Upload) -> float:
        return float(upload.n) if self.weighting == "size" else 1.0

    def afterwards(
        self, server: State, model: nn.Module, task: Task, round_: int, steps: Steps
    ) -> tuple[State, dict[str, Tensor]]:
        return server, {}

    def global_states(self, server: State, clients: Mapping[int, State]) -> Iterator[State]:
        yield self.model_state(server)

    def personal_state(self, server: State, client: State) -> State:
        return self.model_state({**server, **client})

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        logits: Tensor = model(images)
        return logits

    def gallery(self, model: nn.Module, task: Task, columns: int) -> Tensor | None:
        return None


def linear_head(body: nn.Module, task: Task) -> LinearHead:
    """The initial linear head F → K, from its own seed stream: equal for every method that has one."""
    features = feature_dim(body, task.shape)
    with seeded_modules(task.seed, "head"):
        return LinearHead(features, len(task.classes))
