"""The interface between the round loop and its clients. Every back end is a `Cohort`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedbm.config.options import TrainOptions
from fedbm.engine.checkpoint import ClientStates, Progress
from fedbm.engine.round_record import ModelScores
from fedbm.methods.base import Facts, Method, Piece, Pieces, State, Task, Upload, frozen_names


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

    def exchange(self, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        """Train *clients* and yield their results in client order; None means that the work continues."""
        ...

    def close(self) -> None:
        """Release processes, threads and memory."""
        ...


@runtime_checkable
class ScoringCohort(Cohort, Protocol):
    """A cohort that scores the model on the clients' own images, for a server without images."""

    def score(self, round_: int, pieces: Pieces) -> Iterator[tuple[ModelScores, int] | None]:
        """Yield None while waiting, then the scores and the bytes sent for them.

        *pieces* are those from which the clients train next.
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


def broadcast(method: Method, model: nn.Module, server: State, round_: int) -> dict[str, Piece]:
    """Return the pieces that clients need. Tensors of frozen layers are a piece of their own, which is sent once."""
    pieces, frozen = method.broadcast(server, round_), frozen_names(model)
    fixed = {name: value for name, value in merge_pieces(pieces).items() if name in frozen}
    if not fixed:
        return pieces
    rest = {
        name: Piece(piece.version, {key: value for key, value in piece.state.items() if key not in frozen})
        for name, piece in pieces.items()
    }
    return {**rest, "frozen": Piece(0, fixed)}


def merge_pieces(pieces: Pieces) -> State:
    """Return all tensors that a client receives in a round, by name."""
    return {name: value for piece in pieces.values() for name, value in piece.state.items()}


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
