"""The contract a method fulfils. A method is written over plain state and never knows how it is run.

One round, as every engine plays it:

    parts(server, round)                       what a client must hold; sent when its version is new to the client
    begin(model, received, client, facts)      a client takes the model; fixed-shape tensors it needs → context
    phases, draws, loss, adjust                local training: what is trained, on which random numbers, for what
    precompute                                 what of the coming steps does not depend on what is trained
    finish(model, own data, context, facts)    → upload, new client state
    fold(server, N)                            uploads, one by one → new server state
    afterwards(server, model, task, round)     the server's own training (a generator)
    global_states / personal_state             which states are scored

*State* is named tensors and nothing else, so that it can be saved, averaged, sent and compared. Its names are those of
the model's `state_dict()` (`body.…`, `head.…`); what is no part of the model begins with the method's own name and a
dot (`scaffold.c.body.conv1.weight`). *Randomness is an input*: what a step draws comes from (seed, round, client)
before the first step and lies in `Batch.draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedbm.models.normalize import Normalise
from fedbm.utils.seeds import seeded_modules

if TYPE_CHECKING:
    from fedbm.language.concepts import ConceptDistribution

State = dict[str, Tensor]


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
        """The initial body: its own seed stream, so that it is equal for all methods."""
        with seeded_modules(self.seed, "body"):
            return self.make_body()

    def normalise(self) -> Normalise:
        return Normalise(self.mean, self.std)


@dataclass(frozen=True)
class Facts:
    """What a client knows of itself: its number, how many samples it has, and how many of each class."""

    client: int
    n: int
    label_counts: tuple[int, ...]


class Part(NamedTuple):
    """A named piece of what clients receive; sent to a client only when it lacks this version."""

    version: int
    state: State


class Phase(NamedTuple):
    """One stretch of local training. The named parts of the model are trained; all others are frozen, in eval mode."""

    epochs: int
    train: tuple[str, ...]


@dataclass
class Batch:
    """One local step's input: normalised images, labels, and this step's rows of what the method drew."""

    images: Tensor
    labels: Tensor
    draws: State = field(default_factory=dict)


class OwnData(Protocol):
    """A client's own samples, for what a method does once after training (prototypes)."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass
class Upload:
    """What one client sends back, with its mean losses and the time it took."""

    client: int
    n: int
    state: State
    losses: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


Folding = Generator[None, Upload | None, State]


class Steps(Protocol):
    """Train *parts* of *model* for as many steps as *draws* has rows, in a plain loop or captured: the engine's choice.

    *loss* gets one row of the draws and returns terms whose sum is minimised; *optimizer* makes a fresh one, told
    whether it must be capturable. The mean of each term over the steps is returned, as a tensor that may still be on
    its way.
    """

    def __call__(
        self,
        model: nn.Module,
        parts: tuple[str, ...],
        loss: Callable[[State], dict[str, Tensor]],
        optimizer: Callable[[list[nn.Parameter], bool], torch.optim.Optimizer],
        draws: State,
    ) -> dict[str, Tensor]: ...


@runtime_checkable
class Method(Protocol):
    """Anything with these is a method; `FedAvg` has them all, so that another method overrides a few.

    Methods are frozen dataclasses: their fields are their options.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # as its paper writes it
    shares: ClassVar[tuple[str, ...]]  # the facts that leave a client's site, by the names of Facts
    central: ClassVar[bool]  # all data in one place: one client, no federation; an upper bound in reports
    personalises: ClassVar[bool]  # clients have models of their own, scored apart
    has_global_model: ClassVar[bool]  # False: the global score is the mean over the clients' own models
    colour: ClassVar[int | None]  # place in the palette of reports; None: the next free one
    tuned: ClassVar[Mapping[str, str]]  # options usually tuned per data set → how reports write them

    @property
    def needs_concepts(self) -> bool: ...

    @property
    def ensemble(self) -> bool:
        """Whether several global states vote (mean probabilities) or are scored one by one (mean scores)."""
        ...

    def model(self, task: Task) -> nn.Module:
        """The model with its initial weights, on the CPU; FedBMError for a task this method cannot do."""
        ...

    def server_init(self, model: nn.Module) -> State: ...

    def parts(self, server: State, round_: int) -> dict[str, Part]: ...

    def client_init(self, task: Task, facts: Facts) -> State:
        """A client's state before it first takes part; it stays with the client and is kept between rounds."""
        ...

    def begin(self, model: nn.Module, received: State, client: State, facts: Facts) -> State: ...

    def phases(self, epochs: int) -> Sequence[Phase]: ...

    def draws(self, model: nn.Module, task: Task, received: State, steps: int, rng: torch.Generator) -> State:
        """Everything random in the next *steps* local steps, as CPU tensors whose first dimension is the step."""
        ...

    def precompute(self, model: nn.Module, draws: State, context: State) -> State:
        """The draws of some steps → what those steps read of them, first dimension still the step; no gradients.

        For what does not depend on the trained parts, such as images of a frozen generator: an engine may do it for
        one step or for many at once, and beside the training.
        """
        ...

    def loss(self, model: nn.Module, batch: Batch, context: State) -> dict[str, Tensor]:
        """The terms of one step's loss; their sum is minimised, each is recorded."""
        ...

    def adjust(self, model: nn.Module, context: State) -> None:
        """Change `.grad` in place between backward and the optimiser's step."""

    def finish(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]: ...

    def fold(self, server: State, clients: int) -> Folding:
        """Take uploads in client order, `upload = yield` until None, and return the new server state.

        Taken one by one, none need be kept: the server's memory does not grow with clients. *clients* is N.
        """
        ...

    def afterwards(
        self, server: State, model: nn.Module, task: Task, round_: int, steps: Steps
    ) -> tuple[State, dict[str, Tensor]]:
        """The server's own training after a round, by *steps*: the new server state and its mean losses."""
        ...

    def global_states(self, server: State, clients: Mapping[int, State]) -> Iterator[State]:
        """The model states that make this method's global score; *clients* has those that took part so far."""
        ...

    def personal_state(self, server: State, client: State) -> State:
        """The model state a client would use for itself; asked for only where the method personalises."""
        ...

    def logits(self, model: nn.Module, images: Tensor) -> Tensor: ...

    def gallery(self, model: nn.Module, task: Task, columns: int) -> Tensor | None:
        """Pictures to show, [K, columns, C, s, s] in [0,1], of a model that holds the server's state."""
        ...


def load_state(model: nn.Module, state: State) -> None:
    """Copy *state* into the model's tensors of the same names (in place: addresses stay, as captured graphs need)."""
    own = model.state_dict()
    copy_all([own[name] for name in state], list(state.values()))


def copy_state(model: nn.Module, parts: tuple[str, ...] | None = None) -> State:
    """A copy of the model's state, or of the named parts of it."""
    own = {n: v.detach() for n, v in model.state_dict().items() if parts is None or n.partition(".")[0] in parts}
    copies = {name: torch.empty_like(value) for name, value in own.items()}
    copy_all(list(copies.values()), list(own.values()))
    return copies


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """target ← source for each pair; on a GPU by few kernels, not one a pair, each of which the host would issue."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        alike = by_type.setdefault(target.dtype, ([], []))
        alike[0].append(target)
        alike[1].append(source)
    with torch.no_grad():
        for some, others in by_type.values():
            torch._foreach_copy_(some, others)


def size_of(state: State) -> int:
    """Bytes of the tensors, as they would be sent."""
    return sum(value.nbytes for value in state.values())


def train_only(model: nn.Module, parts: tuple[str, ...]) -> list[tuple[str, nn.Parameter]]:
    """Put the named parts in train mode with gradients, all others in eval mode without; the trained parameters."""
    for part, module in model.named_children():
        module.train(part in parts)
        module.requires_grad_(part in parts)
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def trained_parameters(model: nn.Module) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Names, values and gradients of the parameters in training, for adjust(); lists, which foreach kernels take."""
    named = [(n, p.detach(), p.grad) for n, p in model.named_parameters() if p.requires_grad and p.grad is not None]
    return [n for n, _, _ in named], [value for _, value, _ in named], [gradient for _, _, gradient in named]


def placed(draws: State, like: Tensor) -> State:
    """*draws* on the device of *like*, real numbers in its precision."""
    return {
        name: value.to(like.device, like.dtype if value.is_floating_point() else value.dtype, non_blocking=True)
        for name, value in draws.items()
    }
