"""Every upload is checked before it is used: size, names, dtypes, shapes, then values and their norm.

What an upload must look like is read off the method itself: its own finish() on one blank image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedbm.engine.clients.base import find_nonfinite
from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import DTYPES, Entry, Packed, read_header, unpack
from fedbm.methods.base import Facts, Method, Part, State, Task

Form = tuple[torch.dtype, tuple[int, ...]]


def expected_upload(method: Method, model: nn.Module, task: Task, parts: Mapping[str, Part]) -> dict[str, Form]:
    """Name → dtype and shape of what a client sends; *model* is left with the parts' values in it."""
    received = {name: value for part in parts.values() for name, value in part.state.items()}
    facts = Facts(0, 1, (1, *[0] * (len(task.classes) - 1)))
    context = method.start_client(model, received, method.client_init(task, facts), facts)
    upload, _ = method.finish_client(model, _OneImage(task.shape, next(model.parameters())), context, facts)
    return {name: (value.dtype, tuple(value.shape)) for name, value in upload.items()}


def read_upload(packed: Packed, expected: Mapping[str, Form], sent: State, max_norm: float) -> tuple[State, float]:
    """Return the upload, decoded and found sound, and its norm; FedBMError says what is wrong with it."""
    whole = sum(dtype.itemsize * math.prod(shape) for dtype, shape in expected.values())
    if misfit := misfit_of(read_header(packed, most=whole), expected):
        raise FedBMError(misfit)
    state = unpack(packed, base=sent, most=whole)
    if problem := find_nonfinite(state):
        raise FedBMError(problem)
    if (norm := norm_of(state, sent)) > max_norm:
        raise FedBMError(f"its difference to what was sent has norm {norm:.3g}, above max_norm = {max_norm:g}")
    # dp_noise, or delta's rounding, may take BatchNorm's variance below 0, whose root is no number
    sound = {name: value.clamp_min(0) if name.endswith(".running_var") else value for name, value in state.items()}
    return sound, norm


def misfit_of(entries: Sequence[Entry], expected: Mapping[str, Form]) -> str | None:
    """How names, dtypes and shapes differ from what they must be, or None. Foreign names are not repeated."""
    found = {entry.name: entry for entry in entries}
    if missing := [name for name in expected if name not in found]:
        return f"{missing[0]} is missing"
    if len(found) > len(expected):
        return f"{len(found) - len(expected)} tensors came that the method does not send"
    for name, (dtype, shape) in expected.items():
        if DTYPES[found[name].dtype] != dtype:
            return f"{name} is {found[name].dtype}, not {str(dtype).removeprefix('torch.')}"
        if found[name].shape != shape:
            return f"{name} has shape {list(found[name].shape)}, not {list(shape)}"
    return None


def norm_of(state: State, sent: State) -> float:
    """√Σ (sent back − sent out)² over all real numbers; what was not sent out counts from 0."""
    total = 0.0
    for name, value in state.items():
        if value.is_floating_point():
            known = sent.get(name)
            fits = known is not None and known.shape == value.shape
            gap = value.double() - known.cpu().double() if fits and known is not None else value.double()
            total += float(gap.square().sum())
    return math.sqrt(total)


class _OneImage:
    def __init__(self, shape: tuple[int, int, int], like: Tensor) -> None:
        self._shape, self._like = shape, like

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self._like.new_zeros((1, *self._shape)), torch.zeros(1, dtype=torch.int64, device=self._like.device)
