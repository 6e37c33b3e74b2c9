"""The interface between the round loop and its clients, and the cohort that trains clients one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedbm.config.options import TrainOptions
from fedbm.engine.checkpoint import ClientStates, Progress
from fedbm.engine.local_training import Samples, train_client
from fedbm.engine.round_record import ModelScores
from fedbm.methods.base import Facts, Method, Part, State, Task, Upload, frozen_names, names_not_sent, size_of


@dataclass(frozen=True)
class ClientResult:
    """One client's upload, the reason to reject it if there is one, and the bytes sent to and received from it."""

    upload: Upload
    rejection: str | None
    sent: int
    received: int
    missing: bool = False  # the client sent no update


class Cohort(Protocol):
    """The clients of a run, in this process or elsewhere."""

    def census(self) -> Mapping[int, Facts]:
        """Return the facts of every client that can train now."""
        ...

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[ClientResult | None]:
        """Train *clients* and yield their results in client order; None means that the work continues."""
        ...

    def close(self) -> None:
        """Release processes, threads and memory."""
        ...


@runtime_checkable
class ScoringCohort(Cohort, Protocol):
    """A cohort that scores the model on the clients' own images, for a server without images."""

    def score(self, round_: int, parts: Mapping[str, Part]) -> Iterator[tuple[ModelScores, int] | None]:
        """Yield None while waiting, then the scores and the bytes sent for them.

        *parts* are those from which the clients train next.
        """
        ...


@dataclass(frozen=True)
class LocalSetup:
    """What training all clients on one machine needs: the method, its model, and every client's samples and state."""

    method: Method
    task: Task
    train: TrainOptions
    model: nn.Module
    images: Tensor
    labels: Tensor
    clients: Sequence[Tensor]  # indices of each client's samples
    states: ClientStates
    progress: Progress


class LocalCohort:
    """Train clients one after the other on one model in this process. Memory does not grow with the clients."""

    def __init__(self, setup: LocalSetup) -> None:
        self._method, self._task, self._train, self._model = setup.method, setup.task, setup.train, setup.model
        labels, classes = setup.labels, len(setup.task.classes)
        normalise = setup.task.normalise().to(labels.device)
        self._data = [Samples(setup.images, labels, indices, normalise) for indices in setup.clients]
        self._states, self._holds = setup.states, setup.progress.holds
        self._facts = {
            client: Facts(client, len(own), tuple(labels[own].bincount(minlength=classes).tolist()))
            for client, own in enumerate(setup.clients)
        }

    def census(self) -> Mapping[int, Facts]:
        return self._facts

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[ClientResult | None]:
        received = merge_parts(parts)
        for client in clients:
            yield self._accept(round_, *self.train(round_, client, received), parts)

    def close(self) -> None:
        pass

    def train(self, round_: int, client: int, received: State) -> tuple[Upload, State]:
        """Train one client for one round. Return its upload and its new state."""
        return train_client(
            self._method,
            self._model,
            self._task,
            self._train,
            round_,
            self._facts[client],
            self._data[client],
            received,
            self._load_state(client),
        )

    def _load_state(self, client: int) -> State:
        if client in self._states:
            return self._states[client]
        return self._method.client_init(self._task, self._facts[client])

    def _accept(self, round_: int, upload: Upload, own: State, parts: Mapping[str, Part]) -> ClientResult:
        """Check an upload, store the client's new state, and count the bytes sent and received."""
        rejection = find_nonfinite(upload.state) or find_nonfinite(own)
        if own and rejection is None:  # after a rejection the client continues from its former state
            self._states.put(upload.client, round_, own)
        held = self._holds.setdefault(upload.client, {})
        missing = [part for name, part in parts.items() if held.get(name) != part.version]
        held.update({name: part.version for name, part in parts.items()})
        if self._method.central:
            return ClientResult(upload, rejection, 0, 0)
        return ClientResult(upload, rejection, sum(size_of(part.state) for part in missing), size_of(upload.state))


def broadcast(method: Method, model: nn.Module, server: State, round_: int) -> dict[str, Part]:
    """Return the parts that clients need. Tensors of frozen layers are a part of their own, which is sent once.

    If the method sends a second copy of the model, the frozen layers of the copy are not sent at all.
    """
    parts, frozen = method.broadcast(server, round_), frozen_names(model)
    fixed = {name: value for name, value in merge_parts(parts).items() if name in frozen}
    if not fixed:
        return parts
    not_sent = names_not_sent(method, model)
    rest = {
        name: Part(part.version, {key: value for key, value in part.state.items() if key not in not_sent})
        for name, part in parts.items()
    }
    return {**rest, "frozen": Part(0, fixed)}


def merge_parts(parts: Mapping[str, Part]) -> State:
    """Return all tensors that a client receives in a round, by name."""
    return {name: value for part in parts.values() for name, value in part.state.items()}


def find_nonfinite(state: State) -> str | None:
    """Return which tensor is not finite, as a sentence, or None. Waits for the device once if all are finite."""
    values = {name: value for name, value in state.items() if value.is_floating_point() and value.numel()}
    if not values:
        return None
    largest = torch._foreach_norm(list(values.values()), math.inf)  # NaN if the tensor contains one
    device = next((value.device for value in largest if value.is_cuda), torch.device("cpu"))  # Adam counts on the CPU
    if bool(torch.stack([value.to(device) for value in largest]).isfinite().all()):
        return None
    return f"{next(name for name, value in values.items() if not bool(value.isfinite().all()))} is not finite"
