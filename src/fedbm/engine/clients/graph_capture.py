"""Work captured once as a CUDA graph and replayed on static tensors: an optimiser step, and what goes before it.

A graph reads and writes fixed addresses. A step's inputs therefore lie in buffers of many rows, and a counter on the
device says which row is next: nothing is captured again when clients, learning rate or round change.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedbm.engine.local_training import descend
from fedbm.errors import FedBMError
from fedbm.methods.base import State

WARM_UP = 3  # runs before a capture: libraries choose their kernels, optimisers make their state
UNIT = 8  # steps precomputed by one replay: enough to fill a GPU, few enough to waste little at a client's end


class CannotCapture(FedBMError):
    """What was to be captured waits for the device or branches on a tensor's value."""


class CapturedStep:
    """One optimiser step over static *rows*: `start(first)`, then each `replay()` takes the next row."""

    def __init__(
        self,
        loss: Callable[[State], dict[str, Tensor]],
        optimizer: torch.optim.Optimizer,
        adjust: Callable[[], None],
        rows: State,
        stream: torch.cuda.Stream,
    ) -> None:
        self.optimizer, self.rows = optimizer, rows
        self._next = torch.zeros(1, dtype=torch.int64, device=stream.device)
        self.sums: dict[str, Tensor] = {}

        def step() -> None:
            row = {name: value.index_select(0, self._next)[0] for name, value in self.rows.items()}
            for name, term in descend(loss(row), optimizer, adjust).items():
                self.sums.setdefault(name, torch.zeros_like(term)).add_(term)
            self._next.add_(1)

        def again() -> None:
            self._next.zero_()
            optimizer.zero_grad(set_to_none=True)

        self._work = step  # a graph does not keep alive what it reads
        self._graph = captured(step, again, stream)
        self.reset()

    def start(self, first: int = 0) -> None:
        self._next.fill_(first)

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        """As before the first step: no momentum, no sums."""
        state = (value for kept in self.optimizer.state.values() for value in kept.values())
        if held := [*(value for value in state if isinstance(value, Tensor)), *self.sums.values()]:
            torch._foreach_zero_(held)


class CapturedRows:
    """rows → *work*(rows), UNIT rows a replay, from static *rows* into static `made`, which has *count* rows."""

    def __init__(self, work: Callable[[State], State], rows: State, count: int, stream: torch.cuda.Stream) -> None:
        self.rows = rows
        device = stream.device
        self._from = torch.zeros(1, dtype=torch.int64, device=device)
        self._to = torch.zeros(1, dtype=torch.int64, device=device)
        unit = torch.arange(UNIT, device=device)
        like = work({name: value[:UNIT] for name, value in rows.items()})
        self.made = {name: value.new_zeros(count, *value.shape[1:]) for name, value in like.items()}

        def replayed() -> None:
            taken = {name: value.index_select(0, self._from + unit) for name, value in self.rows.items()}
            for name, value in work(taken).items():
                self.made[name].index_copy_(0, self._to + unit, value)
            self._from.add_(UNIT)
            self._to.add_(UNIT)

        self._work = replayed
        self._graph = captured(replayed, lambda: self._start(0), stream)

    def _start(self, first: int) -> None:
        self._from.zero_()
        self._to.fill_(first)

    def replay(self, steps: int, first: int) -> list[torch.cuda.Event]:
        """Work on the first *steps* rows, results from row *first* on; when each UNIT of them is made.

        A few rows beyond the last may be overwritten with what is of no use.
        """
        self._start(first)
        made = []
        for _ in range(-(-steps // UNIT)):
            self._graph.replay()
            made.append(torch.cuda.current_stream().record_event())
        return made


def captured(work: Callable[[], None], again: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """*work* as a graph, after warming up; *again* puts its counters back."""
    graph = torch.cuda.CUDAGraph()
    numbers = torch.cuda.default_generators[stream.device.index]
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            drawn = numbers.get_offset()
            work()
            again()
        if numbers.get_offset() != drawn:  # replays would draw in the order in which they happen to be issued
            raise CannotCapture("it draws random numbers of its own, such as dropout's")
        try:
            # threads of ours draw and pin memory meanwhile, which is no part of it
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # PyTorch has no class of its own for it
            numbers.graphsafe_set_state(numbers.clone_state())  # which still believes that it is being captured
            if "captur" in str(error):
                raise CannotCapture(str(error).splitlines()[0]) from error
            raise
        again()
    return graph


def static_rows(rows: State, like: Tensor, count: int) -> State:
    """Buffers of *count* rows for what *rows*, which are fewer or as many, are like; real numbers as *like*."""
    made = {}
    for name, value in rows.items():
        dtype = like.dtype if value.is_floating_point() else value.dtype
        made[name] = torch.zeros(count, *value.shape[1:], dtype=dtype, device=like.device)
    fill(made, rows)
    return made


def fill(buffers: State, rows: State, first: int = 0) -> None:
    """Copy *rows* into the buffers from row *first* on; the host does not wait where they are pinned."""
    for name, value in rows.items():
        buffers[name][first : first + len(value)].copy_(value, non_blocking=True)


def pinned(rows: State, dtype: torch.dtype) -> State:
    """*rows* in memory that a device can read by itself, real numbers as *dtype*."""
    return {
        name: (value.to(dtype) if value.is_floating_point() else value).pin_memory() for name, value in rows.items()
    }
