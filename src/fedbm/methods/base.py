"""The base class of every method. A method works on named tensors and does not depend on how or where it runs.

One round, as every back end runs it:

    broadcast(server, round)                         what clients need; sent when its version is new to the client
    start_client(model, received, client, facts)     load the model; return fixed-shape tensors as the context
    phases, sample_randomness, precompute            what is trained, and on which random numbers
    loss, adjust_gradients                           one step of local training
    finish_client(model, data, context, facts)       return the upload and the new client state
    aggregator(server, clients)                      add(upload) for every client, then result(): the new server state
    server_step(server, model, task, round, steps)   the server's own training (a generator)
    global_states, personal_state                    which states are scored

*State* is named tensors and nothing else, so it can be saved, averaged, sent and compared. Its names are those of the
model's `state_dict()` (`body.…`, `head.…`). Names that are not part of the model start with the method's name and a
dot (`scaffold.c.body.conv1.weight`). *Randomness is an input*: it is drawn from (seed, round, client) before the first
step and reaches the step in `Batch.draws`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedbm.errors import FedBMError
from fedbm.models.generator_loss import batch_norms
from fedbm.models.normalize import Normalise
from fedbm.utils.optimizers import MakeOptimizer
from fedbm.utils.seeds import seeded_modules

if TYPE_CHECKING:
    from fedbm.language.concept_distribution import ConceptDistribution

State = dict[str, Tensor]
Loss = Callable[[State], dict[str, Tensor]]  # the draws of a step → the terms of its loss


@dataclass(frozen=True)
class Task:
    """What server and clients agree on before the first round."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    make_body: Callable[[], nn.Module]
    concepts: ConceptDistribution | None = None
    hflip: bool = False
    vflip: bool = False

    def body(self) -> nn.Module:
        """Build the initial body from its own seed stream, so that it is equal for all methods."""
        with seeded_modules(self.seed, "body"):
            body = self.make_body()
        if not isinstance(body, nn.Module):
            raise FedBMError(f"body must be a function that returns a module, but it returned a {type(body).__name__}")
        return body

    def normalise(self) -> Normalise:
        return Normalise(self.mean, self.std)


@dataclass(frozen=True)
class Facts:
    """What a client knows about itself: its number, its number of samples, and the number of each class."""

    client: int
    n: int
    label_counts: tuple[int, ...]


class Piece(NamedTuple):
    """A piece of what clients receive. It is sent to a client only if the client does not have this version."""

    version: int
    state: State


Pieces = Mapping[str, Piece]  # by name


class Phase(NamedTuple):
    """A phase of local training. The named parts of the model are trained; all others are frozen, in eval mode."""

    epochs: int
    train: tuple[str, ...]


@dataclass
class Batch:
    """The input of one local step: normalised images, labels, and this step's rows of the method's random draws.

    *label_smoothing* is 0 unless the method uses FedAvg's loss.
    """

    images: Tensor
    labels: Tensor
    draws: State = field(default_factory=dict)
    label_smoothing: float = 0.0


class OwnData(Protocol):
    """A client's own samples, for computations after training such as prototypes."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass
class Upload:
    """What one client sends back, with its mean losses and the time it took."""

    client: int
    n: int
    state: State
    losses: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Aggregator(Protocol):
    """Combine uploads into a new server state. Uploads are added one by one, in client order."""

    def add(self, upload: Upload) -> None:
        """Add the upload of one client."""

    def result(self) -> State:
        """Return the new server state. Called once, after the last upload."""
        ...


class Steps(Protocol):
    """Train *parts* of *model* for as many steps as *draws* has rows, in a plain loop or as a CUDA graph.

    *loss* gets one row of the draws and returns terms; their sum is minimised. Return the mean of each term.
    """

    def __call__(
        self, model: nn.Module, parts: tuple[str, ...], loss: Loss, optimizer: MakeOptimizer, draws: State
    ) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Method(ABC):
    """A method. Subclasses are frozen dataclasses: their fields are their options.

    A subclass must define `model`, `loss` and `aggregator`; every other hook has a default. Most methods subclass
    `FedAvg`, which defines these three, and override a few hooks. Hooks get the module that `model` returned; a method
    may annotate it with its own class.

    Example:
        >>> import fedbm
        >>> fedbm.METHODS["fedprox"](mu=0.1)
        FedProx(weighting='size', mu=0.1)
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # as its paper writes it
    shares: ClassVar[tuple[str, ...]] = ("n",)  # fields of Facts that a client sends to the server
    class_statistics: ClassVar[str] = ""  # statistics of each class that an upload contains, as a site reads them
    local_parts: ClassVar[tuple[str, ...]] = ()  # parts of the model that stay at the client; the server has none
    server_step_uses_updates: ClassVar[bool] = False  # server_step() is skipped in a round without a usable update
    central: ClassVar[bool] = False  # all data in one place: one client, no federation; an upper bound in reports
    personalises: ClassVar[bool] = False  # clients have models of their own, scored separately
    # option → (other option, its values for which the option applies); the CLI refuses an option without effect
    option_needs: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]] = {}

    @property
    def needs_concepts(self) -> bool:
        """Whether the method reads concept distributions."""
        return False

    @property
    def ensemble(self) -> bool:
        """Whether several global states vote by mean probabilities. Otherwise their scores are averaged."""
        return False

    @property
    def common_model(self) -> bool:
        """Whether the global score comes from one state. Otherwise it combines the models of several clients."""
        return True

    @abstractmethod
    def model(self, task: Task) -> nn.Module:
        """Return the model with its initial weights, on the CPU. Raise FedBMError if it does not support the task.

        Its output for images [B,C,H,W] are logits [B,K]; their softmax gives the probabilities.
        """

    def server_init(self, model: Any) -> State:
        """Return the server's state before the first round."""
        local = self.local_names(model)
        return {name: value for name, value in copy_state(model).items() if name not in local}

    def local_names(self, model: nn.Module) -> set[str]:
        """Return the state names that stay at the client; the server does not have them."""
        return {name for name in model.state_dict() if name.partition(".")[0] in self.local_parts}

    def broadcast(self, server: State, round_: int) -> dict[str, Piece]:
        """Return what clients need in this round, in named pieces with a version."""
        return {"model": Piece(round_, self.model_state(server))}

    def model_state(self, state: State) -> State:
        """Return the entries of *state* that belong to the model, without the method's own entries."""
        own = tuple(f"{vars(kind)['name']}." for kind in type(self).__mro__ if "name" in vars(kind))
        return {name: value for name, value in state.items() if not name.startswith(own)}

    def client_init(self, task: Task, facts: Facts) -> State:
        """Return a client's own state before its first round. The client keeps it between rounds."""
        is_default = type(self).local_names is Method.local_names
        if is_default and set(self.local_parts).isdisjoint(self.trained_parts):
            return {}  # without the time that a model takes
        return self.copy_trained(self.model(task))[1]

    def start_client(self, model: Any, received: State, client: State, facts: Facts) -> State:
        """Load the received state and the client's own state into the model; return the context of its steps."""
        load_state(model, self.model_state({**received, **client}))
        return {}

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Return the phases of local training."""
        return (Phase(epochs, ("body", "head")),)

    @property
    def trained_parts(self) -> tuple[str, ...]:
        """The parts of the model that some phase of local training trains."""
        return tuple(dict.fromkeys(part for phase in self.phases(1) for part in phase.train))

    def copy_trained(self, model: nn.Module) -> tuple[State, State]:
        """Copy the tensors of the trained parts: those that are uploaded, and those that stay at the client.

        Frozen layers are not uploaded, because everyone has them.
        """
        state, local = copy_state(model, self.trained_parts), self.local_names(model)
        here = local | frozen_names(model)
        return {n: v for n, v in state.items() if n not in here}, {n: v for n, v in state.items() if n in local}

    def sample_randomness(self, model: Any, task: Task, received: State, steps: int, rng: torch.Generator) -> State:
        """Return everything random in the next *steps* steps, as CPU tensors with the step as first dimension."""
        return {}

    def precompute(self, model: Any, draws: State, context: State) -> State:
        """Compute the inputs of some steps from their draws, without gradients; the step stays the first dimension.

        Use it for inputs that do not depend on the trained parts, such as images of a frozen generator. A back end may
        call it for one step or for many at once, and in parallel with training.
        """
        return draws

    @abstractmethod
    def loss(self, model: Any, batch: Batch, context: State) -> dict[str, Tensor]:
        """Return the terms of one step's loss. Their sum is minimised; each is recorded."""

    def adjust_gradients(self, model: Any, context: State) -> None:
        """Change `.grad` in place between the backward pass and the optimiser's step."""
        return

    def finish_client(self, model: Any, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        """Return what the client uploads, and its new own state."""
        return self.copy_trained(model)

    @abstractmethod
    def aggregator(self, server: State, clients: int) -> Aggregator:
        """Return an object that combines this round's uploads; *clients* is N, the number of all clients."""

    def server_step(
        self, server: State, model: Any, task: Task, round_: int, steps: Steps
    ) -> tuple[State, dict[str, Tensor]]:
        """Train at the server after a round; return the new server state and mean losses."""
        return server, {}

    def global_states(self, server: State, clients: Mapping[int, State]) -> Iterator[State]:
        """Yield the model states for the global score. *clients* contains the clients that took part so far."""
        if self.common_model:
            yield self.model_state(server)
        else:
            yield from (self.personal_state(server, clients[client]) for client in clients)

    def personal_state(self, server: State, client: State) -> State:
        """Return the model state that a client uses itself. Called only if the method personalises."""
        return self.model_state({**server, **client})

    def sample_images(self, model: Any, task: Task, columns: int) -> Tensor | None:
        """Return images for the report, [K, columns, C, s, s] in [0,1], from a model with the server's state."""
        return None


def load_state(model: nn.Module, state: State) -> None:
    """Copy *state* into the model's tensors of the same names. Captured graphs need the copy to be in place."""
    own = model.state_dict()
    copy_all([own[name] for name in state], list(state.values()))


def copy_state(model: nn.Module, parts: tuple[str, ...] | None = None) -> State:
    """Return a copy of the model's state, or of the named parts of it."""
    own = {n: v.detach() for n, v in model.state_dict().items() if parts is None or n.partition(".")[0] in parts}
    copies = {name: torch.empty_like(value) for name, value in own.items()}
    copy_all(list(copies.values()), list(own.values()))
    return copies


def with_prefix(state: State, prefix: str, new: str | None = None) -> State:
    """Return the tensors with names that start with *prefix*; if given, *new* replaces the prefix.

    >>> with_prefix({"body.a": Tensor([1]), "head.a": Tensor([0])}, "body.", "previous.")
    {'previous.a': tensor([1.])}
    """
    new = prefix if new is None else new
    return {new + name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target. On a GPU this launches one kernel per data type, not one per pair."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        group = by_type.setdefault(target.dtype, ([], []))
        group[0].append(target)
        group[1].append(source)
    with torch.no_grad():
        for same_type_targets, same_type_sources in by_type.values():
            torch._foreach_copy_(same_type_targets, same_type_sources)


def size_of(state: State) -> int:
    """Return the number of bytes of the tensors."""
    return sum(value.nbytes for value in state.values())


def train_only(
    model: nn.Module, parts: tuple[str, ...], freeze_batchnorm: bool = False
) -> list[tuple[str, nn.Parameter]]:
    """Put the named parts in train mode and all others, without gradients, in eval mode; return trained parameters.

    With *freeze_batchnorm*, BatchNorm layers normalise by their running statistics and do not change them. Their
    weights and biases are still trained. Frozen layers of the body are never trained.
    """
    for part, module in model.named_children():
        module.train(part in parts)
        module.requires_grad_(part in parts)
    if freeze_batchnorm:
        for layer in batch_norms(model):
            layer.eval()
    for _, frozen in frozen_layers(model):
        frozen.training = False
        for parameter in frozen.parameters(recurse=False):
            parameter.requires_grad_(False)
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def frozen_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers of the body that the option `freeze` chose, by name."""
    names = getattr(getattr(model, "body", None), "frozen_layers", ())
    return [(f"body.{name}", model.get_submodule(f"body.{name}")) for name in names]


def frozen_names(model: nn.Module) -> set[str]:
    """Return the state names of the frozen layers."""
    return {
        f"{layer}.{name}"
        for layer, module in frozen_layers(model)
        for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }


def find_missing(method: Method, model: nn.Module, state: State) -> list[str]:
    """Return the tensors of trained parts that *state* lacks, without frozen layers, which everyone has."""
    found = state.keys() | frozen_names(model)
    return [name for name in model.state_dict() if name not in found and name.partition(".")[0] in method.trained_parts]


def unfrozen_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters outside frozen layers, by name."""
    frozen = frozen_names(model)
    return [(name, parameter) for name, parameter in model.named_parameters() if name not in frozen]


def trained_parameters(model: nn.Module) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Return names, values and gradients of the parameters in training, as lists for foreach kernels."""
    named = [(n, p.detach(), p.grad) for n, p in model.named_parameters() if p.requires_grad and p.grad is not None]
    return [n for n, _, _ in named], [value for _, value, _ in named], [gradient for _, _, gradient in named]


def move_to(draws: State, like: Tensor) -> State:
    """Move *draws* to the device of *like*, and convert real numbers to its precision."""
    return {
        name: value.to(like.device, like.dtype if value.is_floating_point() else value.dtype, non_blocking=True)
        for name, value in draws.items()
    }
