"""Clients trained in parallel on one GPU, in slots that replay CUDA graphs on concurrent streams.

The largest clients start first. Memory grows with slots, not with clients; if it runs out, slots are given up and the
user is notified. The server's own training is captured as well. The reference is `local_training.py`: batches and draws
are the same, and results are equal up to rounding.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from fedbm.config.options import TrainOptions
from fedbm.engine.clients.cohort import ClientResult, LocalSetup, merge_pieces
from fedbm.engine.clients.graph_capture import CannotCapture, CapturedStep, allocate_rows, copy_rows, pin_rows
from fedbm.engine.clients.graph_slots import Job, Slot, compile_function
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.device import POLL_SECONDS
from fedbm.engine.local_training import Samples, plain_steps
from fedbm.methods.base import Facts, Loss, Method, Pieces, State, Task, Upload, copy_all, train_only
from fedbm.utils.optimizers import MakeOptimizer

MAX_CLIENTS_AHEAD = 4  # per slot, of the first client without a result: bounds the uploads in memory


class CapturedCohort(LocalCohort):
    """Clients trained in parallel in the slots of one GPU."""

    def __init__(self, setup: LocalSetup, slots: int, compile_: bool, notify: Callable[[str], None]) -> None:
        super().__init__(setup)
        for data in self._data:
            data.normalise.memory_format = torch.channels_last
        self._like, self._limit, self._compile, self._notify = self._data[0].normalise.mean, slots, compile_, notify
        self._slots: list[Slot] = []
        self._threads = ThreadPoolExecutor(2, "draws")
        self._plain = False  # the method cannot be captured, so a plain loop trains its clients

    def exchange(self, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        remaining = deque(clients)
        before = sum(slot.capture_seconds for slot in self._slots)
        while remaining and not self._plain:
            full = None
            try:
                yield from self._train_in_parallel(round_, remaining, pieces)
            except CannotCapture as why:
                self._plain = True
                self._notify(f"{self._method.name} cannot be captured, so a plain loop trains its clients: {why}")
            except torch.OutOfMemoryError as error:
                full = error.with_traceback(None)  # a traceback would keep the slots alive
            if full is not None and not self.free_memory():
                raise full
        yield from super().exchange(round_, list(remaining), pieces)
        if (spent := sum(slot.capture_seconds for slot in self._slots) - before) > 0:
            self._notify(f"{'compiled and ' if self._compile else ''}captured in {spent:.1f} s")

    def close(self) -> None:
        self._threads.shutdown()
        torch.cuda.synchronize()  # after an error, clients may still be in training in the memory that is freed here
        self._slots.clear()

    def free_memory(self) -> bool:
        """Drop cached client states or, if there are none, give up a slot. Return whether either was possible.

        Clients in training start again and compute the same.
        """
        torch.cuda.synchronize()
        if self._states.drop_from_memory():
            action = "client states are read from disk"
        elif len(self._slots) > 1:
            self._slots.pop()
            self._limit = len(self._slots)
            action = f"continuing with {self._limit} clients in parallel"
        else:
            return False
        gc.collect()
        torch.cuda.empty_cache()
        self._notify(f"the device's memory is full: {action}")
        return True

    def _train_in_parallel(self, round_: int, remaining: deque[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        """Train the *remaining* clients, the largest first. Yield results in order, each removed from *remaining*."""
        main_stream = torch.cuda.current_stream()
        received = merge_pieces(pieces)
        rank = {client: number for number, client in enumerate(remaining)}
        waiting = list(remaining)
        running: dict[Slot, tuple[Job, Iterator[bool]]] = {}
        issued: dict[int, Job] = {}
        while remaining:
            last = rank[remaining[0]] + MAX_CLIENTS_AHEAD * self._limit
            while (near := [c for c in waiting if rank[c] < last]) and (slot := self._free(running)):
                client = max(near, key=lambda c: self._facts[c].n)
                waiting.remove(client)
                facts, data, state = self._facts[client], self._data[client], self._load_state(client)
                job = Job(facts, data, received, state, main_stream.record_event())
                running[slot] = job, slot.run(round_, job)
            busy = False
            for slot, (job, steps) in list(running.items()):
                moved = next(steps, None)
                busy |= moved is not False
                if moved is None:
                    issued[job.facts.client] = job
                    del running[slot]
            while remaining and remaining[0] in issued and issued[remaining[0]].done:
                busy = True
                job = issued[remaining[0]]
                result = self._accept(round_, finish(job, main_stream), job.new_state, pieces)
                del issued[remaining.popleft()], job  # only now: if memory had run out, the client would start again
                yield result
            if remaining and not busy:
                time.sleep(POLL_SECONDS)
            yield None

    def _free(self, running: Mapping[Slot, Any]) -> Slot | None:
        free = next((slot for slot in self._slots if slot not in running), None)
        if free is None and len(self._slots) < self._limit:
            # training has priority over precomputing; the largest client, in the first slot, has the highest
            priority = -1 if self._slots else -2
            free = Slot(self._method, self._task, self._train, self._like, self._compile, priority, self._threads)
            self._slots.append(free)
        return free


def finish(job: Job, main_stream: torch.cuda.Stream) -> Upload:
    """Return the upload of an issued job, with its losses and seconds, when the device has computed it."""
    assert job.upload is not None
    assert job.times is not None
    main_stream.wait_event(job.times[1])
    for value in (*job.upload.state.values(), *job.new_state.values(), *job.sums.values()):
        if value.is_cuda:  # written on the slot's stream, read on the main stream
            value.record_stream(main_stream)
    job.upload.losses = {name: float(total) / job.steps for name, total in job.sums.items()}
    job.upload.seconds = job.times[0].elapsed_time(job.times[1]) / 1000
    return job.upload


class CapturedClient:
    """One client in one slot, for a node of a federation. Its steps stay captured from round to round."""

    def __init__(self, method: Method, task: Task, train: TrainOptions, like: Tensor) -> None:
        self._slot = Slot(method, task, train, like, False, -2, ThreadPoolExecutor(2, "draws"))

    def train(self, round_: int, facts: Facts, data: Samples, received: State, state: State) -> tuple[Upload, State]:
        """Train the client for one round. Return its upload and its new state."""
        main_stream = torch.cuda.current_stream()
        job = Job(facts, data, received, state, main_stream.record_event())
        for issued in self._slot.run(round_, job):
            if not issued:
                time.sleep(POLL_SECONDS)
        return finish(job, main_stream), job.new_state


class CapturedSteps:
    """`Steps` with CUDA graphs: each loop is captured once and then replayed.

    If a capture runs out of memory, *free_memory* frees some and returns whether it could.
    """

    def __init__(self, free_memory: Callable[[], bool], compile_: bool, notify: Callable[[str], None]) -> None:
        self._free_memory, self._compile, self._notify = free_memory, compile_, notify
        self._captured: dict[tuple[str, ...], CapturedStep] = {}
        self._plain: set[tuple[str, ...]] = set()
        self._stream: torch.cuda.Stream | None = None

    def __call__(
        self, model: nn.Module, parts: tuple[str, ...], loss: Loss, optimizer: MakeOptimizer, draws: State
    ) -> dict[str, Tensor]:
        main_stream = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        while parts not in self._captured and parts not in self._plain:
            full = None
            try:
                self._captured[parts] = self._capture(model, parts, loss, optimizer, draws)
            except CannotCapture as why:
                self._plain.add(parts)
                self._notify(f"the training of {', '.join(parts)} cannot be captured, so it uses a plain loop: {why}")
            except torch.OutOfMemoryError as error:
                full = error.with_traceback(None)
            if full is not None and not self._free_memory():
                raise full
        if parts in self._plain:
            return plain_steps(model, parts, loss, optimizer, draws)
        count = len(next(iter(draws.values())))
        step = self._captured[parts]
        self._stream.wait_stream(main_stream)
        with torch.cuda.stream(self._stream):
            step.reset()
            copy_rows(step.rows, pin_rows(draws, next(model.parameters()).dtype))
            step.start()
            for _ in range(count):
                step.replay()
        main_stream.wait_stream(self._stream)
        return {name: total / count for name, total in step.sums.items()}

    def _capture(
        self, model: nn.Module, parts: tuple[str, ...], loss: Loss, optimizer: MakeOptimizer, draws: State
    ) -> CapturedStep:
        stream = self._stream
        assert stream is not None
        began = time.perf_counter()
        tensors = list(model.state_dict().values())
        before = [value.clone() for value in tensors]
        trained = train_only(model, parts)
        like = trained[0][1]
        rows = allocate_rows(draws, like, len(next(iter(draws.values()))))
        terms = compile_function(loss) if self._compile else loss
        torch.cuda.synchronize()
        try:
            with torch.cuda.stream(stream):
                step = CapturedStep(terms, optimizer([p for _, p in trained], True), lambda: None, rows, stream)
        finally:  # warming up has trained the model, even if memory ran out
            torch.cuda.synchronize()
            copy_all(tensors, before)
        how = "compiled and captured" if self._compile else "captured"
        self._notify(f"the training of {', '.join(parts)} {how} in {time.perf_counter() - began:.1f} s")
        return step
