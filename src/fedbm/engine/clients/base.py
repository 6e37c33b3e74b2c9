"""A cohort is all that differs between ways to run: who is there, and how work reaches clients and comes back."""

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
from fedbm.engine.records import ModelScores
from fedbm.methods.base import Facts, Method, Part, State, Task, Upload, size_of


@dataclass(frozen=True)
class Answer:
    """One client's upload, what is wrong with it if anything, and the bytes that went to it and came from it."""

    upload: Upload
    flaw: str | None
    sent: int
    received: int
    missing: bool = False  # no update came at all, so there is none to be refused


class Cohort(Protocol):
    """census(): who can be asked. exchange(): a round's work, answers in client order as they become ready; None means
    that work continues, so that a driver can turn to something else meanwhile. close(): nobody will be asked again."""

    def census(self) -> Mapping[int, Facts]: ...

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[Answer | None]: ...

    def close(self) -> None: ...


@runtime_checkable
class ScoringCohort(Cohort, Protocol):
    """A cohort whose clients score the model on images of their own, for a server that has none.

    score() yields None while it waits, and finally the evaluation and the bytes sent for it. *parts* are those that the
    clients train from next.
    """

    def score(self, round_: int, parts: Mapping[str, Part]) -> Iterator[tuple[ModelScores, int] | None]: ...


@dataclass(frozen=True)
class Setting:
    """What training all clients on one machine needs: the method and its model, everyone's samples and states."""

    method: Method
    task: Task
    train: TrainOptions
    model: nn.Module
    images: Tensor
    labels: Tensor
    clients: Sequence[Tensor]  # which samples are whose
    states: ClientStates
    progress: Progress


class LocalCohort:
    """Every client in this process, one after the other, on one model: memory does not grow with clients."""

    def __init__(self, setting: Setting) -> None:
        self._method, self._task, self._train, self._model = setting.method, setting.task, setting.train, setting.model
        labels, classes = setting.labels, len(setting.task.classes)
        normalise = setting.task.normalise().to(labels.device)
        self._data = [Samples(setting.images, labels, indices, normalise) for indices in setting.clients]
        self._states, self._holds = setting.states, setting.progress.holds
        self._facts = {
            client: Facts(client, len(own), tuple(labels[own].bincount(minlength=classes).tolist()))
            for client, own in enumerate(setting.clients)
        }

    def census(self) -> Mapping[int, Facts]:
        return self._facts

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[Answer | None]:
        received = received_from(parts)
        for client in clients:
            yield self._answer(round_, *self.train(round_, client, received), parts)

    def close(self) -> None:
        pass

    def train(self, round_: int, client: int, received: State) -> tuple[Upload, State]:
        """One client's round, here and now: its upload and its new state."""
        return train_client(
            self._method,
            self._model,
            self._task,
            self._train,
            round_,
            self._facts[client],
            self._data[client],
            received,
            self._state_of(client),
        )

    def _state_of(self, client: int) -> State:
        known = client in self._states
        return self._states[client] if known else self._method.client_init(self._task, self._facts[client])

    def _answer(self, round_: int, upload: Upload, own: State, parts: Mapping[str, Part]) -> Answer:
        """Check an upload, keep the client's new state, and count what was sent and received."""
        flaw = flaw_of(upload.state) or flaw_of(own)
        if own and flaw is None:  # a client whose update is refused resumes from its former state
            self._states.put(upload.client, round_, own)
        held = self._holds.setdefault(upload.client, {})
        lacking = [part for name, part in parts.items() if held.get(name) != part.version]
        held.update({name: part.version for name, part in parts.items()})
        if self._method.central:
            return Answer(upload, flaw, 0, 0)
        return Answer(upload, flaw, sum(size_of(part.state) for part in lacking), size_of(upload.state))


def received_from(parts: Mapping[str, Part]) -> State:
    """All that a client holds at the start of a round."""
    return {name: value for part in parts.values() for name, value in part.state.items()}


def flaw_of(state: State) -> str | None:
    """What makes a state unfit to be averaged, in words, or None. One look at the device where all is well."""
    values = {name: value for name, value in state.items() if value.is_floating_point() and value.numel()}
    if not values:
        return None
    largest = torch._foreach_norm(list(values.values()), math.inf)  # NaN where there is one
    device = next((value.device for value in largest if value.is_cuda), torch.device("cpu"))  # Adam counts on the CPU
    if bool(torch.stack([value.to(device) for value in largest]).isfinite().all()):
        return None
    return f"{next(name for name, value in values.items() if not bool(value.isfinite().all()))} is not finite"
