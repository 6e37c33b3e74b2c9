"""Check a node's answer before it is used: first that it belongs to the request, then its numbers and tensors.

The method itself defines what an upload must look like: the result of finish_client() for one blank image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import nn

from fedbm.engine.clients.cohort import find_nonfinite, merge_pieces
from fedbm.engine.local_training import Samples, finish_client
from fedbm.engine.round_record import Seconds
from fedbm.errors import FedBMError
from fedbm.federation.protocol.messages import SCORED, CensusOutdated, printable
from fedbm.federation.protocol.packing import Packed, start_of, unpack
from fedbm.methods import is_plugin
from fedbm.methods.base import Facts, Method, Pieces, State, Task
from fedbm.runs.run_file_types import PrivacyLoss
from fedbm.utils.json_records import Index, Length, Positive, Range, decode
from fedbm.utils.metrics import Array

MAX_LOSS = 1e50  # beyond float32; a mean of such losses is still a number that a record may contain
MAX_LOSSES, MAX_LOSS_NAME = 50, 50  # the number of loss terms, and the characters of a name
MAX_SIZE_FACTOR = 10.0
NORM_ROUNDS = 5
HALF_ERROR = 2.0**-10  # more than the relative error of half precision

T = TypeVar("T")
Accepted = MutableMapping[int, list[tuple[int, float]]]  # round → (n, norm) of each accepted update
Cell = Annotated[int, Range(0, 10**9)]  # so that sums fit in 64 bits; the census bounds the whole matrix
Matrix = Annotated[tuple[Annotated[tuple[Cell, ...], Length("classes")], ...], Length("classes")]


@dataclass(frozen=True)
class Census:
    """A node's description of itself. Label counts, val and test are None if the run does not ask for them."""

    client: int
    name: str
    n: Positive  # training images
    classes: tuple[str, ...]
    holds: Mapping[str, str]  # piece → digest of the node's copy
    versions: Mapping[str, Any]
    head: str  # of its audit
    label_counts: tuple[Index, ...] | None = None
    val: Index | None = None  # images
    test: Index | None = None

    @property
    def facts(self) -> Facts:
        return Facts(self.client, self.n, self.label_counts or ())

    @property
    def scored(self) -> dict[str, int]:
        """The numbers of val and test images, or none if nodes do not score the model."""
        return {side: count for side in SCORED if (count := getattr(self, side)) is not None}


@dataclass(frozen=True)
class TrainAnswer:
    """What a node reports of its training, in addition to its upload."""

    n: int
    losses: Mapping[str, Annotated[float, Range(-MAX_LOSS, MAX_LOSS)] | None]  # None: not finite
    seconds: Seconds
    keeps: bool  # whether the client has a state of its own
    privacy: PrivacyLoss | None = None

    @property
    def mean_losses(self) -> dict[str, float]:
        return {name: math.nan if value is None else float(value) for name, value in self.losses.items()}


def check_equal(body: Mapping[str, Any], **expected: Any) -> None:
    """Raise FedBMError unless the answer repeats these values of its request."""
    for key, value in expected.items():
        if body.get(key) != value:
            raise FedBMError(f"it answered for another {key} than it was asked for")


def read_answer(kind: type[T], value: Any, what: str) -> T:
    """Return *value* as *kind*. The message does not repeat any part of an answer."""
    try:
        return decode(kind, value, "the answer")
    except (FedBMError, RecursionError):  # RecursionError: its values are nested too deep
        raise FedBMError(f"its {what} cannot be read") from None


def read_census(body: Mapping[str, Any], terms: Mapping[str, Any], shares_counts: bool, max_samples: int) -> Census:
    """Check a node's answer to the census; raise FedBMError with the reason why it cannot take part.

    *shares_counts* is whether the method shares label counts. A node may claim *max_samples* images of each split.
    """
    census, classes = read_answer(Census, body, "census"), terms["task"]["classes"]
    if unknown := [name for name in census.classes if name not in classes]:
        raise FedBMError(f'it has the class "{printable(unknown[0])}", but the run has only {", ".join(classes)}')
    asked = {"label_counts": shares_counts, **dict.fromkeys(SCORED, terms["evaluates"])}
    for key, wanted in asked.items():
        if (getattr(census, key) is not None) != wanted:
            raise FedBMError(f"it did not send {key}, or this run does not ask for it")
    if (most := max([census.n, *census.scored.values()])) > max_samples:
        raise FedBMError(f"it claims {printable(most)} images, above max_samples = {max_samples} in server.toml")
    counts = census.label_counts
    if counts is not None and (len(counts), sum(counts)) != (len(classes), census.n):
        raise FedBMError("its label counts do not match its number of training images")
    return census


def read_training(body: Mapping[str, Any]) -> TrainAnswer:
    """Return what a node reports of its training; every name of a loss can become part of a record."""
    found = read_answer(TrainAnswer, body, "report of the training")
    safe = all(name.isidentifier() and len(name) <= MAX_LOSS_NAME for name in found.losses)
    if not safe or len(found.losses) > MAX_LOSSES:
        raise FedBMError("its report of the training cannot be read")
    return found


def read_matrix(value: Any, classes: int) -> Array:
    """Return a confusion matrix as [K,K] counts."""
    matrix = read_answer(Matrix, value, "confusion matrix")
    if len(matrix) != classes:
        raise FedBMError("its confusion matrix cannot be read")
    return np.array(matrix, dtype=np.int64)


def expected_upload(method: Method, model: nn.Module, task: Task, pieces: Pieces) -> State:
    """Return what a client sends, as tensors without values. This loads the pieces into *model*."""
    facts = Facts(0, 1, (1, *[0] * (len(task.classes) - 1)))
    context = method.start_client(model, merge_pieces(pieces), method.client_init(task, facts), facts)
    device, (channels, height, width) = next(model.parameters()).device, task.shape
    image = torch.zeros((1, height, width, channels), dtype=torch.uint8, device=device)
    number = torch.zeros(1, dtype=torch.int64, device=device)  # of the image, and of its class
    blank = Samples(image, number, number, task.normalise().to(device))
    upload, _ = finish_client(method, model, blank, context, facts)
    return {name: value.to("meta") for name, value in upload.items()}


def read_upload(packed: Packed, expected: State, sent: State, max_norm: float) -> tuple[State, float]:
    """Return the decoded upload and the norm of its update; raise FedBMError if anything is wrong with it."""
    state = unpack(packed, sent, expected)
    if flaw := find_nonfinite(state):
        raise FedBMError(flaw)
    if (norm := update_norm(state, sent)) > max_norm:
        raise FedBMError(f"its difference to what was sent has norm {norm:.3g}, above max_norm = {max_norm:g}")
    # dp_noise, or the rounding of delta, can make a variance of BatchNorm negative
    sound = {name: value.clamp_min(0) if name.endswith(".running_var") else value for name, value in state.items()}
    return sound, norm


def check_counts(state: State, sent: State, method: Method, facts: Facts) -> None:
    """Raise CensusOutdated if an upload's numbers of images per class, its weights, are not those of the census.

    Half precision may round them, or with delta their difference to what was sent.
    """
    name = f"{method.name}.counts"
    if name in state and not is_plugin(method):
        known = torch.tensor(facts.label_counts, dtype=torch.float64)
        slack = HALF_ERROR * (known + start_of(name, state[name], sent).abs())
        if not bool(((state[name].double() - known).abs() <= slack).all()):
            raise CensusOutdated("its numbers of images per class differ from its census")


def update_norm(state: State, sent: State) -> float:
    """Return √Σ (received − sent)² over all real numbers."""
    values = ((name, value) for name, value in state.items() if value.is_floating_point())
    return math.sqrt(
        sum(float((value.double() - start_of(name, value, sent)).square().sum()) for name, value in values)
    )


class NormHistory:
    """Refuse an update that is far larger than the updates accepted before it. The checkpoint contains *accepted*.

    A site with more images than the median site takes more steps in a round, so it may send a larger update. The factor
    for its size is at most ten, whatever number of images it claims.

        bound(n) = ratio · median norm · size(n)
        size(n)  = n / median n, at least 1 and at most 10

    Both medians are over the updates that were accepted in the last five rounds. In the first round there are none, so
    only `max_norm` applies.
    """

    def __init__(self, accepted: Accepted, ratio: float) -> None:
        self._accepted, self._ratio = accepted, ratio

    def begin(self, round_: int) -> None:
        """Start a round, and drop the updates that an earlier attempt at this round accepted."""
        for other in list(self._accepted):
            if not round_ - NORM_ROUNDS <= other < round_:
                del self._accepted[other]

    def bound(self, round_: int, n: int) -> float:
        """Return the largest norm that a site with *n* images may send in this round."""
        known = [pair for other, pairs in self._accepted.items() if other < round_ for pair in pairs]
        if not known:
            return math.inf
        size = n / median(count for count, _ in known)
        return self._ratio * median(norm for _, norm in known) * min(max(size, 1.0), MAX_SIZE_FACTOR)

    def accept(self, round_: int, n: int, norm: float) -> None:
        """Remember an update, or raise FedBMError if its norm is above the bound."""
        if norm > (bound := self.bound(round_, n)):
            raise FedBMError(
                f"the norm of its update is {norm:.3g}, above the bound {bound:.3g}: {self._ratio:g} times the usual "
                "norm for a site of its size. If you trust this site, raise max_norm_ratio"
            )
        self._accepted.setdefault(round_, []).append((n, norm))
