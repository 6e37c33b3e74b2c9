"""The average of the global model over rounds: scored next to the model itself, never used for training.

    θ̄_t = a θ̄_{t−1} + (1 − a) θ_t,   a = min(d, (t − 1)/t)

d is the option `server_average`. Until (t − 1)/t reaches d this is the mean of all rounds so far, then an exponential
average that remembers about 1/(1 − d) rounds. BatchNorm's running mean m is averaged like a weight. Its variance v is
averaged through the second moment:

    v̄ = avg(v + m²) − m̄²,   at least 0

Integers (BatchNorm's counter, the round of a generator's training) keep their latest value.

The accumulated quantity is the second moment itself, in float64, so no round loses digits to cancellation. Weights are
accumulated in their own precision. Every operation rounds once, so the bits of an average do not depend on device,
threads or memory layout, and a resumed run continues exactly.
"""

from __future__ import annotations

import torch

from fedbm.engine.checkpoint import split_by_prefix
from fedbm.methods.base import Piece, Pieces, State

MEAN, VARIANCE = ".running_mean", ".running_var"
PREFIX = "server_average."  # of its tensors in a checkpoint
ROUNDS, SUMS = "rounds", "sums."


class ServerAverage:
    """Add the model of each round; read the averaged model at any time. *decay* is d.

    A resumed run passes the number of models so far (*rounds*) and the accumulated tensors by name (*sums*), in which
    second moments take the place of variances.

    >>> average = ServerAverage(0.9)
    >>> for value in (1.0, 4.0):
    ...     average.add({"w": torch.tensor([value])})
    >>> average.state()["w"]
    tensor([2.5000])
    """

    def __init__(self, decay: float, rounds: int = 0, sums: State | None = None) -> None:
        self.decay, self.rounds, self.sums = decay, rounds, sums or {}

    def add(self, state: State) -> None:
        """Add the model of one more round to the average. *state* is neither changed nor kept."""
        self.rounds += 1
        new = {**state, **moments(state)}
        if self.rounds == 1:
            self.sums = {name: value.clone() for name, value in new.items()}
            return
        share = 1 - min(self.decay, (self.rounds - 1) / self.rounds)
        self.sums.update({name: value.clone() for name, value in new.items() if not value.is_floating_point()})
        names = [name for name, value in new.items() if value.is_floating_point()]
        sums = [self.sums[name] for name in names]
        change = torch._foreach_sub([new[name] for name in names], sums)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(sums, change)

    def state(self) -> State:
        """Return the averaged model as new tensors, named as the models that were added."""
        found = {name: value.clone() for name, value in self.sums.items()}
        for mean, variance in statistics(found):
            central = found[variance] - found[mean].square()
            found[variance] = central.clamp_min(0).float()
            found[mean] = found[mean].float()
        return found

    def saved(self) -> State:
        """Return the tensors to save in a checkpoint next to the server's state; restore_average() reads them."""
        sums = {PREFIX + SUMS + name: value for name, value in self.sums.items()}
        return {PREFIX + ROUNDS: torch.tensor(self.rounds), **sums}


def restore_average(server: State, decay: float) -> tuple[State, ServerAverage | None]:
    """Split a checkpoint's tensors into the server's state and its average, which is None if *decay* is 0."""
    own, saved = split_by_prefix(server, PREFIX)
    if not decay:
        return own, None
    rounds = int(saved.pop(ROUNDS)) if saved else 0
    return own, ServerAverage(decay, rounds, {name.removeprefix(SUMS): value for name, value in saved.items()})


def averaged_pieces(pieces: Pieces, state: State, version: int) -> dict[str, Piece]:
    """Return *pieces* with the averaged *state* in those of this *version*; scores do not depend on the others.

    The new pieces have a negative version, so that clients do not confuse them with the pieces they train from.
    """
    return {
        name: Piece(-version, {key: state.get(key, value) for key, value in piece.state.items()})
        if piece.version == version
        else piece
        for name, piece in pieces.items()
    }


def no_common_model(method: str) -> str:
    """Return the error message for a method without a common model."""
    return f"{method} has no common model, so it cannot be averaged over rounds; remove server_average"


def moments(state: State) -> State:
    """Return the first and second moments (float64) of all running statistics, under the same names."""
    found = {}
    for mean, variance in statistics(state):
        found[mean] = state[mean].double()
        found[variance] = state[variance].double() + found[mean].square()
    return found


def statistics(state: State) -> list[tuple[str, str]]:
    """Return the names of running means and variances, in pairs."""
    layers = [name.removesuffix(MEAN) for name in state if name.endswith(MEAN)]
    return [(layer + MEAN, layer + VARIANCE) for layer in layers if layer + VARIANCE in state]
