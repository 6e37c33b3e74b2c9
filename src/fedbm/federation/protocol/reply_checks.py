"""Check a node's answer before it is used: first that it belongs to the request, then its numbers and tensors.

The method itself defines what an upload must look like: the result of finish_client() for one blank image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from statistics import median
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import nn

from fedbm.engine.clients.cohort import find_nonfinite, merge_pieces
from fedbm.engine.local_training import Samples, finish_client
from fedbm.engine.round_record import Seconds
from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import DTYPES, Packed, TensorEntry, read_header, start_of, unpack
from fedbm.methods import is_plugin
from fedbm.methods.base import Facts, Method, Pieces, State, Task
from fedbm.runs.run_file_types import PrivacyLoss
from fedbm.utils.json_records import Keys, Range, decode
from fedbm.utils.metrics import Array

MAX_COUNT = 10**9  # of one cell, so that sums fit in 64 bits; the census bounds the whole matrix
MAX_LOSS = 1e50  # beyond float32; a mean of such losses is still a number that a record may contain
MAX_LOSS_NAME = 50  # characters
MAX_SIZE_FACTOR = 10.0
_LOSSES: Any = Keys({"losses": Mapping[str, Annotated[float, Range(-MAX_LOSS, MAX_LOSS)] | None], "seconds": Seconds})
NORM_ROUNDS = 5
HALF_ERROR = 2.0**-10  # more than the relative error of half precision

T = TypeVar("T")
Form = tuple[torch.dtype, tuple[int, ...]]
Accepted = MutableMapping[int, list[tuple[int, float]]]  # round → (n, norm) of each accepted update


def check_equal(body: Mapping[str, Any], **expected: Any) -> None:
    """Raise FedBMError unless the answer repeats these values of its request."""
    for key, value in expected.items():
        if body.get(key) != value:
            raise FedBMError(f"it answered for another {key} than it was asked for")


def read_losses(body: Mapping[str, Any]) -> tuple[dict[str, float], float]:
    """Return the mean of each loss term, NaN if it was not finite, and the seconds of training."""
    found = _read(_LOSSES, body, "losses")
    names_are_safe = all(name.isidentifier() and len(name) <= MAX_LOSS_NAME for name in found["losses"])
    if len(found["losses"]) > 50 or not names_are_safe:
        raise FedBMError("its losses cannot be read")
    losses = {name: math.nan if value is None else float(value) for name, value in found["losses"].items()}
    return losses, float(found["seconds"])


def read_privacy(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return ε of this run, ε of all runs at the site (None if no finite bound exists), and "bound"."""
    reported = _read(PrivacyLoss, body.get("privacy"), "privacy loss")
    bound = "none" if reported.epsilon_all_runs is None else "finite"
    return {"epsilon": reported.epsilon, "epsilon_all_runs": reported.epsilon_all_runs, "bound": bound}


def _read(kind: type[T], value: Any, what: str) -> T:
    """Return *value* as *kind*. The message does not repeat any part of an answer."""
    try:
        return decode(kind, value, "the answer")
    except (FedBMError, RecursionError):  # RecursionError: its values are nested too deep
        raise FedBMError(f"its {what} cannot be read") from None


def read_matrix(value: Any, classes: int) -> Array:
    """Return a confusion matrix as [K,K] counts."""
    square = isinstance(value, list) and len(value) == classes
    if not square or not all(isinstance(row, list) and len(row) == classes for row in value):
        raise FedBMError(f"its confusion matrix is not {classes} × {classes}")
    if not all(type(count) is int and 0 <= count <= MAX_COUNT for row in value for count in row):
        raise FedBMError("its confusion matrix does not contain counts")
    return np.array(value, dtype=np.int64)


def expected_upload(method: Method, model: nn.Module, task: Task, pieces: Pieces) -> dict[str, Form]:
    """Return name → dtype and shape of what a client sends. This loads the pieces into *model*."""
    facts = Facts(0, 1, (1, *[0] * (len(task.classes) - 1)))
    context = method.start_client(model, merge_pieces(pieces), method.client_init(task, facts), facts)
    device, (channels, height, width) = next(model.parameters()).device, task.shape
    image = torch.zeros((1, height, width, channels), dtype=torch.uint8, device=device)
    number = torch.zeros(1, dtype=torch.int64, device=device)  # of the image, and of its class
    blank = Samples(image, number, number, task.normalise().to(device))
    upload, _ = finish_client(method, model, blank, context, facts)
    return {name: (value.dtype, tuple(value.shape)) for name, value in upload.items()}


def upload_size(expected: Mapping[str, Form]) -> int:
    """Return the bytes of an upload, without its header and without compression."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in expected.values())


def read_upload(packed: Packed, expected: Mapping[str, Form], sent: State, max_norm: float) -> tuple[State, float]:
    """Return the decoded upload and the norm of its update; raise FedBMError if anything is wrong with it."""
    if mismatch := find_mismatch(read_header(packed, max_size=upload_size(expected)), expected):
        raise FedBMError(mismatch)
    state = unpack(packed, base=sent)
    if flaw := find_nonfinite(state):
        raise FedBMError(flaw)
    if (norm := update_norm(state, sent)) > max_norm:
        raise FedBMError(f"its difference to what was sent has norm {norm:.3g}, above max_norm = {max_norm:g}")
    # dp_noise, or the rounding of delta, can make a variance of BatchNorm negative
    sound = {name: value.clamp_min(0) if name.endswith(".running_var") else value for name, value in state.items()}
    return sound, norm


def counts_fit(state: State, sent: State, method: Method, facts: Facts) -> bool:
    """Return whether an upload with numbers of images per class, which weigh its statistics, has those of the census.

    Half precision may round them, or with delta their difference to what was sent.
    """
    name = f"{method.name}.counts"
    if is_plugin(method) or name not in state:
        return True
    known = torch.tensor(facts.label_counts, dtype=torch.float64)
    slack = HALF_ERROR * (known + start_of(name, state[name], sent).abs())
    return bool(((state[name].double() - known).abs() <= slack).all())


def find_mismatch(entries: Sequence[TensorEntry], expected: Mapping[str, Form]) -> str | None:
    """Return how names, dtypes and shapes differ from the expected ones, or None. Unknown names are not repeated."""
    found = {entry.name: entry for entry in entries}
    if missing := [name for name in expected if name not in found]:
        return f"{missing[0]} is missing"
    if len(found) > len(expected):
        return f"it has {len(found) - len(expected)} tensors that the method does not send"
    for name, (dtype, shape) in expected.items():
        if DTYPES[found[name].dtype] != dtype:
            return f"{name} is {found[name].dtype}, not {str(dtype).removeprefix('torch.')}"
        if found[name].shape != shape:
            return f"{name} has shape {list(found[name].shape)}, not {list(shape)}"
    return None


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
