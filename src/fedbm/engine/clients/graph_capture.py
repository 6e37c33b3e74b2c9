"""CUDA graphs that are captured once and replayed on static tensors: an optimiser step and its precomputed inputs.

A graph reads and writes fixed addresses. The inputs of steps are therefore rows of static buffers, and a counter on the
device selects the next row. So nothing is captured again when the client, the learning rate or the round changes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedbm.engine.local_training import descend
from fedbm.errors import FedBMError
from fedbm.methods.base import State

WARM_UP_RUNS = 3  # before a capture, in which libraries choose kernels and optimisers create their state
ROWS_PER_REPLAY = 8  # precomputed at once: enough to fill a GPU, but little waste at the end of a client


class CannotCapture(FedBMError):
    """The code waits for the device, branches on a tensor's value, or draws random numbers."""


class CapturedStep:
    """One optimiser step on static *rows*: after `start(first)`, each `replay()` uses the next row."""

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

        def restart() -> None:
            self._next.zero_()
            optimizer.zero_grad(set_to_none=True)

        self._step = step  # a graph does not keep its inputs alive
        self._graph = capture_graph(step, restart, stream)
        self.reset()

    def start(self, first: int = 0) -> None:
        self._next.fill_(first)

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        """Set the state of the optimiser and the sums of losses to zero."""
        state = (value for slots in self.optimizer.state.values() for value in slots.values())
        if tensors := [*(value for value in state if isinstance(value, Tensor)), *self.sums.values()]:
            torch._foreach_zero_(tensors)


class CapturedRows:
    """Compute *work*(rows) for ROWS_PER_REPLAY static *rows* per replay, into static `results` of *count* rows."""

    def __init__(self, work: Callable[[State], State], rows: State, count: int, stream: torch.cuda.Stream) -> None:
        self.rows = rows
        device = stream.device
        self._from = torch.zeros(1, dtype=torch.int64, device=device)
        self._to = torch.zeros(1, dtype=torch.int64, device=device)
        offsets = torch.arange(ROWS_PER_REPLAY, device=device)
        example = work({name: value[:ROWS_PER_REPLAY] for name, value in rows.items()})
        self.results = {name: value.new_zeros(count, *value.shape[1:]) for name, value in example.items()}

        def step() -> None:
            taken = {name: value.index_select(0, self._from + offsets) for name, value in self.rows.items()}
            for name, value in work(taken).items():
                self.results[name].index_copy_(0, self._to + offsets, value)
            self._from.add_(ROWS_PER_REPLAY)
            self._to.add_(ROWS_PER_REPLAY)

        self._step = step
        self._graph = capture_graph(step, lambda: self._start(0), stream)

    def _start(self, first: int) -> None:
        self._from.zero_()
        self._to.fill_(first)

    def replay(self, steps: int, first: int) -> list[torch.cuda.Event]:
        """Compute the first *steps* rows into the results from row *first* on. Return an event for each replay.

        The last replay may also overwrite a few unused rows after them.
        """
        self._start(first)
        events = []
        for _ in range(-(-steps // ROWS_PER_REPLAY)):
            self._graph.replay()
            events.append(torch.cuda.current_stream().record_event())
        return events


def capture_graph(
    work: Callable[[], None], restart: Callable[[], None], stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    """Run *work* to warm up, then capture it as a graph; *restart* resets its counters after each run."""
    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[stream.device.index]
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_RUNS):
            offset = generator.get_offset()
            work()
            restart()
        if generator.get_offset() != offset:  # the numbers of a replay would depend on the order of the replays
            raise CannotCapture("it draws random numbers on the device, as dropout does")
        try:
            # "thread_local" because other threads draw random numbers and pin memory meanwhile
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # PyTorch has no more specific class
            generator.graphsafe_set_state(generator.clone_state())  # otherwise it stays in the capturing state
            if "captur" in str(error):
                raise CannotCapture(str(error).splitlines()[0]) from error
            raise
        restart()
    return graph


def allocate_rows(rows: State, like: Tensor, count: int) -> State:
    """Return buffers of *count* rows that begin with *rows*, on the device of *like*, floats with its dtype."""
    buffers = {}
    for name, value in rows.items():
        dtype = like.dtype if value.is_floating_point() else value.dtype
        buffers[name] = torch.zeros(count, *value.shape[1:], dtype=dtype, device=like.device)
    copy_rows(buffers, rows)
    return buffers


def copy_rows(buffers: State, rows: State, first: int = 0) -> None:
    """Copy *rows* into the buffers from row *first* on, without waiting if they are pinned."""
    for name, value in rows.items():
        buffers[name][first : first + len(value)].copy_(value, non_blocking=True)


def pin_rows(rows: State, dtype: torch.dtype) -> State:
    """Return *rows* in pinned memory, floats as *dtype*."""
    return {
        name: (value.to(dtype) if value.is_floating_point() else value).pin_memory() for name, value in rows.items()
    }
