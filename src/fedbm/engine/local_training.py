"""Reference local training: one client in plain PyTorch. Every faster engine must compute the same.

An epoch is a permutation of the client's samples. Its last batch wraps to the start of the same permutation, so every
step has B samples. Batches, pseudo-labels, noise and crops come from the streams (seed, "client", round, client, …).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbm.config.options import TrainOptions
from fedbm.engine.augmentation import augment, draw_augmentation
from fedbm.engine.checkpoint import OPTIMIZER_PREFIX, split_by_prefix
from fedbm.engine.device import autocast, gather_rows, send_to
from fedbm.errors import FedBMError
from fedbm.methods.base import (
    Batch,
    Facts,
    Loss,
    Method,
    OwnData,
    State,
    Task,
    Upload,
    frozen_names,
    move_to,
    train_only,
)
from fedbm.models.generator_loss import batch_norms
from fedbm.models.normalize import Normalise
from fedbm.utils.optimizers import SGD, Adam, AdamW, MakeOptimizer
from fedbm.utils.seeds import seeded_modules, torch_rng

ADAMS: dict[str, type[torch.optim.Adam]] = {"adam": Adam, "adamw": AdamW}
CHUNK = 64  # steps that share one draw of random numbers; part of the definition of the stream


@dataclass(frozen=True)
class Samples:
    """A subset of a data set: all uint8 images [n,H,W,C], all labels, and the subset's indices.

    The labels are on the device that trains. The images are there, too, or in host memory; the indices are with them.
    *sources* contains the number of the source of each sample of the subset, if they are scored by source.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    normalise: Normalise
    sources: NDArray[np.int64] | None = None

    @cached_property
    def indices_on_host(self) -> Tensor:
        return self.indices.cpu()

    def batch(self, positions: Tensor, augmentation: State | None = None) -> tuple[Tensor, Tensor]:
        """Return normalised images and labels. *augmentation* are one step's draws of `draw_augmentation`."""
        chosen, device = self.indices[positions], self.labels.device
        images = send_to(self.gather(chosen), device) if self.images.is_cpu else self.images[chosen]
        return self.normalise.pixels(augment(images, augmentation or {})), self.labels[send_to(chosen, device)]

    def gather(self, chosen: Tensor) -> Tensor:
        """Return the chosen images in host memory, pinned if a GPU trains."""
        return gather_rows(self.images, chosen, pin=self.labels.is_cuda)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples, in order, in batches that are large enough to use the device well."""
        pixels = self.images.shape[1] * self.images.shape[2]
        size = min(1024, max(16, 2**24 // pixels)) if self.labels.is_cuda else 256
        for positions in torch.split(torch.arange(len(self.indices), device=self.indices.device), size):
            yield self.batch(positions)


def epoch_plan(n: int, batch: int, rng: torch.Generator) -> Tensor:
    """Return [⌈n/B⌉, B] positions: a permutation, and its last batch wraps to its start.

    >>> epoch_plan(3, 2, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 2])
    """
    steps = -(-n // batch)
    return torch.randperm(n, generator=rng)[torch.arange(steps * batch) % n].view(steps, batch)


Pass = tuple[int, int, slice]  # the round and epoch that seed a permutation of the data, and the steps of it to take


def central_passes(train: TrainOptions, round_: int, n: int) -> Iterator[Pass]:
    """Yield ⌊E·participation·n/B⌋ steps. A pass that does not end with the round continues in the next.

    Pass p has the seed of a client's epoch p % E in round p//E + 1, so both are the same at participation 1.
    """
    whole = -(-n // train.batch)
    count = max(1, int(train.epochs * train.participation * n / train.batch + 1e-9))
    first, last = (round_ - 1) * count, round_ * count
    for number in range(first // whole, -(-last // whole)):
        start = number * whole
        steps = slice(max(first - start, 0), min(last - start, whole))
        yield number // train.epochs + 1, number % train.epochs, steps


def learning_rate(train: TrainOptions, round_: int, epoch: int) -> float:
    """Return η · w · s: w rises to 1 in the warm-up rounds, and s falls.

    With W warm-up rounds of T in round t, w = min(1, t/(W+1)). The schedule s is decay^(number of earlier rounds or
    local epochs), or ½ (1 + cos(π (t−1−W)/(T−W))) after the warm-up.
    """
    warmup = min(train.warmup_rounds, train.rounds - 1)
    lr = train.lr * min(1.0, round_ / (warmup + 1))
    if train.lr_schedule == "cosine":
        share = max(0, round_ - 1 - warmup) / (train.rounds - warmup)
        return lr * (1 + math.cos(math.pi * share)) / 2
    done = round_ - 1 if train.lr_decay_every == "round" else (round_ - 1) * train.epochs + epoch
    return float(lr * train.lr_decay**done)


class Chunk(NamedTuple):
    """Consecutive steps of a client's round with the same phase and learning rate."""

    phase: int
    train: tuple[str, ...]
    freeze_batchnorm: bool
    lr: float
    positions: Tensor  # [steps, B] of the client's samples
    rng: torch.Generator  # for all randomness of the method in these steps
    augmentation: State  # of the images, [steps, B, …]


def schedule(method: Method, task: Task, train: TrainOptions, round_: int, facts: Facts) -> Iterator[Chunk]:
    """Yield the steps of a client's round in chunks, the same for every engine."""
    freeze = 0 < train.freeze_batchnorm_after < round_
    for number, phase in enumerate(method.phases(train.epochs)):
        passes: Iterable[Pass] = ((round_, epoch, slice(None)) for epoch in range(phase.epochs))
        if method.central:
            passes = central_passes(train, round_, facts.n)
        for origin, epoch, steps in passes:
            by_epoch = train.lr_schedule == "exponential" and train.lr_decay_every == "epoch"
            lr = learning_rate(train, origin if by_epoch else round_, epoch)
            stream = (task.seed, "client", origin, facts.client, number, epoch)
            plan = epoch_plan(facts.n, train.batch, torch_rng(*stream, "order"))[steps]
            before = steps.start or 0  # steps of this pass in earlier rounds
            for first in range(0, len(plan), CHUNK):
                positions = plan[first : first + CHUNK]
                rng, images_rng = (torch_rng(*stream, use, before + first) for use in ("draws", "augment"))
                changes = draw_augmentation(train.augment, task, len(positions), train.batch, images_rng)
                yield Chunk(number, phase.train, freeze, lr, positions, rng, changes)


def check_batch_norms(method: Method, model: nn.Module, train: TrainOptions) -> None:
    """Raise FedBMError if BatchNorm is to be frozen, but no trained part of the model has BatchNorm layers."""
    parts = method.trained_parts
    if train.freeze_batchnorm_after and not any(batch_norms(model.get_submodule(part)) for part in parts):
        raise FedBMError(
            "freeze_batchnorm_after needs BatchNorm layers with running statistics, but the parts of the model that "
            f"{method.name} trains have none. Remove it, or use a body with BatchNorm (norm = batch)."
        )


def train_client(
    method: Method,
    model: nn.Module,
    task: Task,
    train: TrainOptions,
    round_: int,
    facts: Facts,
    data: Samples,
    received: State,
    client: State,
) -> tuple[Upload, State]:
    """Train *model* as client *facts.client* in this round. Return the client's upload and its new state."""
    started = time.perf_counter()
    own, saved = split_by_prefix(client, OPTIMIZER_PREFIX)
    context = method.start_client(model, received, own, facts)
    optimizers: dict[int, tuple[torch.optim.Optimizer, list[tuple[str, nn.Parameter]]]] = {}
    sums: dict[str, Tensor] = {}
    total = 0
    # the body may draw from torch's global generator (dropout), which is therefore seeded for this client
    stream = seeded_modules(task.seed, "client", round_, facts.client, "modules")
    with stream, autocast(data.labels.device, train.precision):
        for chunk in schedule(method, task, train, round_, facts):
            if chunk.phase not in optimizers:
                trained = train_only(model, chunk.train, chunk.freeze_batchnorm)
                optimizers[chunk.phase] = make_optimizer(train, trained), trained
                load_optimizer(*optimizers[chunk.phase], saved, chunk.phase)
            optimizer, trained = optimizers[chunk.phase]
            for group in optimizer.param_groups:
                group["lr"] = chunk.lr
            positions = chunk.positions.to(data.indices.device)
            draws = move_to(method.sample_randomness(model, task, received, len(positions), chunk.rng), trained[0][1])
            changes = move_to(chunk.augmentation, trained[0][1])
            for step in range(len(positions)):
                images, labels = data.batch(positions[step], {name: value[step] for name, value in changes.items()})
                with torch.no_grad():
                    row = method.precompute(model, {name: v[step : step + 1] for name, v in draws.items()}, context)
                batch = Batch(images, labels, {name: value[0] for name, value in row.items()}, train.label_smoothing)
                terms = method.loss(model, batch, context)
                for name, term in descend(terms, optimizer, lambda: method.adjust_gradients(model, context)).items():
                    sums[name] = sums[name] + term if name in sums else term
                total += 1
        upload, own = finish_client(method, model, data, context, facts)
    if train.keep_optimizer:
        for phase, (optimizer, trained) in optimizers.items():
            own |= save_optimizer(optimizer, trained, phase)
    losses = {name: float(value) / total for name, value in sums.items()}
    return Upload(facts.client, facts.n, upload, losses, time.perf_counter() - started), own


def finish_client(method: Method, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
    """Return what the client uploads and its new own state. Frozen layers are not uploaded: they are as received."""
    upload, own = method.finish_client(model, data, context, facts)
    frozen = frozen_names(model)
    return {name: value for name, value in upload.items() if name not in frozen}, own


def descend(
    terms: dict[str, Tensor], optimizer: torch.optim.Optimizer, adjust: Callable[[], None] = lambda: None
) -> dict[str, Tensor]:
    """Take one optimiser step on the sum of the loss terms. Return the terms, detached. Every engine uses this."""
    if not isinstance(terms, dict):
        raise FedBMError(
            f"a method's loss must return a dict of terms, such as {{'cross_entropy': …}}, not a {type(terms).__name__}"
        )
    optimizer.zero_grad(set_to_none=True)
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    adjust()
    optimizer.step()
    return {name: term.detach() for name, term in terms.items()}


def plain_steps(
    model: nn.Module, parts: tuple[str, ...], loss: Loss, optimizer: MakeOptimizer, draws: State
) -> dict[str, Tensor]:
    """Run one optimiser step per row of *draws*: the reference implementation of `Steps`."""
    trained = train_only(model, parts)
    stepper = optimizer([parameter for _, parameter in trained], False)
    rows = move_to(draws, trained[0][1])
    count = len(next(iter(rows.values())))
    sums: dict[str, Tensor] = {}
    for row in range(count):
        terms = descend(loss({key: value[row] for key, value in rows.items()}), stepper)
        for key, term in terms.items():
            sums[key] = sums[key] + term if key in sums else term
    return {key: total / count for key, total in sums.items()}


def make_optimizer(train: TrainOptions, trained: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    parameters = [parameter for _, parameter in trained]
    if train.optimizer != "sgd":
        return ADAMS[train.optimizer](parameters, lr=train.lr, weight_decay=train.weight_decay)
    return SGD(parameters, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)


def save_optimizer(optimizer: torch.optim.Optimizer, trained: list[tuple[str, nn.Parameter]], phase: int) -> State:
    """Return the optimiser's tensors, named optimizer.<phase>.<slot>.<parameter>."""
    return {
        f"{OPTIMIZER_PREFIX}{phase}.{slot}.{name}": value.detach().clone()
        for name, parameter in trained
        for slot, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor)
    }


def load_optimizer(
    optimizer: torch.optim.Optimizer, trained: list[tuple[str, nn.Parameter]], saved: State, phase: int
) -> None:
    """Restore the tensors of save_optimizer(), if there are any."""
    parameters = dict(trained)
    for key, value in saved.items():
        number, slot, name = key.split(".", 2)
        if int(number) == phase:
            # Adam counts its steps on the CPU
            optimizer.state[parameters[name]][slot] = value.cpu() if slot == "step" else value.clone()
