"""Clients side by side on one GPU, in slots: the same methods, the same numbers, without Python in between.

Slots work on concurrent streams; the longest clients start first. Memory grows with slots, not with clients; where it
does not suffice, slots are given up and that is said. The server's own training is captured as well.

The plain loop in `local.py` is the reference: same batches, same draws, equal to rounding.
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

from fedbm.engine.clients.base import ClientResult, LocalCohort, LocalSetup, merge_parts
from fedbm.engine.clients.graph_capture import CannotCapture, CapturedStep, fill, pinned, static_rows
from fedbm.engine.clients.graph_slots import Job, Slot, compiled
from fedbm.engine.device import POLL_SECONDS
from fedbm.engine.local_training import plain_steps
from fedbm.methods.base import Part, State, copy_all, train_only

WINDOW = 4  # clients per slot that may be done before their turn to be folded: bounds the uploads held


class CapturedCohort(LocalCohort):
    """Clients in slots of one GPU, side by side."""

    def __init__(self, setup: LocalSetup, slots: int, compile_: bool, say: Callable[[str], None]) -> None:
        super().__init__(setup)
        for data in self._data:
            data.normalise.memory_format = torch.channels_last
        self._like, self._limit, self._compile, self._say = self._data[0].normalise.mean, slots, compile_, say
        self._slots: list[Slot] = []
        self._threads = ThreadPoolExecutor(2, "draws")
        self._plain = False  # this method cannot be captured

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[ClientResult | None]:
        left = deque(clients)
        before = sum(slot.capturing for slot in self._slots)
        while left and not self._plain:
            full = None
            try:
                yield from self._side_by_side(round_, left, parts)
            except CannotCapture as why:
                self._plain = True
                self._say(f"{self._method.name} cannot be captured, its clients are trained in a plain loop: {why}")
            except torch.OutOfMemoryError as error:
                full = error.with_traceback(None)  # which would keep the slots alive
            if full is not None and not self.make_room():
                raise full
        yield from super().exchange(round_, list(left), parts)
        if (spent := sum(slot.capturing for slot in self._slots) - before) > 0:
            self._say(f"{'compiled and ' if self._compile else ''}captured in {spent:.1f} s")

    def close(self) -> None:
        self._threads.shutdown()
        self._slots.clear()

    def make_room(self) -> bool:
        """Hold no client's state, or else give up a slot; whether there was one of these.

        Clients under way start again and compute the same.
        """
        torch.cuda.synchronize()
        if self._states.drop_from_memory():
            done = "clients' states are read from disk"
        elif len(self._slots) > 1:
            self._slots.pop()
            self._limit = len(self._slots)
            done = f"going on with {self._limit} clients side by side"
        else:
            return False
        gc.collect()
        torch.cuda.empty_cache()
        self._say(f"the device's memory is full: {done}")
        return True

    def _side_by_side(self, round_: int, left: deque[int], parts: Mapping[str, Part]) -> Iterator[ClientResult | None]:
        """Train the clients *left*, the largest first; each is taken from *left*, in order, as it is answered."""
        home = torch.cuda.current_stream()
        received = merge_parts(parts)
        rank = {client: number for number, client in enumerate(left)}
        waiting = list(left)
        playing: dict[Slot, tuple[Job, Iterator[bool]]] = {}
        issued: dict[int, Job] = {}
        while left:
            last = rank[left[0]] + WINDOW * self._limit
            while (near := [c for c in waiting if rank[c] < last]) and (slot := self._free(playing)):
                client = max(near, key=lambda c: self._facts[c].n)
                waiting.remove(client)
                facts, data, state = self._facts[client], self._data[client], self._load_state(client)
                job = Job(facts, data, received, state, home.record_event())
                playing[slot] = job, slot.play(round_, job)
            busy = False
            for slot, (job, steps) in list(playing.items()):
                moved = next(steps, None)
                busy |= moved is not False
                if moved is None:
                    issued[job.facts.client] = job
                    del playing[slot]
            while left and left[0] in issued and issued[left[0]].done:
                busy = True
                answer = self._finished(round_, issued[left[0]], parts, home)
                del issued[left.popleft()]  # it is answered; without memory for that it would start again
                yield answer
            if left and not busy:
                time.sleep(POLL_SECONDS)
            yield None

    def _free(self, playing: Mapping[Slot, Any]) -> Slot | None:
        free = next((slot for slot in self._slots if slot not in playing), None)
        if free is None and len(self._slots) < self._limit:
            # training is what all else waits for, and the largest client, which takes the first slot, most of all
            priority = -1 if self._slots else -2
            free = Slot(self._method, self._task, self._train, self._like, self._compile, priority, self._threads)
            self._slots.append(free)
        return free

    def _finished(self, round_: int, job: Job, parts: Mapping[str, Part], home: torch.cuda.Stream) -> ClientResult:
        assert job.upload is not None
        assert job.times is not None
        home.wait_event(job.times[1])
        for value in (*job.upload.state.values(), *job.own.values(), *job.sums.values()):
            if value.is_cuda:  # made on the slot's stream, read on this one
                value.record_stream(home)
        job.upload.losses = {name: float(total) / job.steps for name, total in job.sums.items()}
        job.upload.seconds = job.times[0].elapsed_time(job.times[1]) / 1000
        return self._accept(round_, job.upload, job.own, parts)


class CapturedSteps:
    """`Steps` by graph: a loop is captured once and replayed for every training after it.

    *make_room* frees memory where a capture finds too little, and says whether it could.
    """

    def __init__(self, make_room: Callable[[], bool], compile_: bool, say: Callable[[str], None]) -> None:
        self._make_room, self._compile, self._say = make_room, compile_, say
        self._captured: dict[tuple[str, ...], CapturedStep] = {}
        self._plain: set[tuple[str, ...]] = set()
        self._stream: torch.cuda.Stream | None = None

    def __call__(
        self,
        model: nn.Module,
        parts: tuple[str, ...],
        loss: Callable[[State], dict[str, Tensor]],
        optimizer: Callable[[list[nn.Parameter], bool], torch.optim.Optimizer],
        draws: State,
    ) -> dict[str, Tensor]:
        home = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        while parts not in self._captured and parts not in self._plain:
            full = None
            try:
                self._captured[parts] = self._capture(model, parts, loss, optimizer, draws, self._stream)
            except CannotCapture as why:
                self._plain.add(parts)
                self._say(f"the training of {', '.join(parts)} cannot be captured, it goes in a plain loop: {why}")
            except torch.OutOfMemoryError as error:
                full = error.with_traceback(None)
            if full is not None and not self._make_room():
                raise full
        if parts in self._plain:
            return plain_steps(model, parts, loss, optimizer, draws)
        count = len(next(iter(draws.values())))
        step = self._captured[parts]
        self._stream.wait_stream(home)
        with torch.cuda.stream(self._stream):
            step.reset()
            fill(step.rows, pinned(draws, next(model.parameters()).dtype))
            step.start()
            for _ in range(count):
                step.replay()
        home.wait_stream(self._stream)
        return {name: total / count for name, total in step.sums.items()}

    def _capture(
        self,
        model: nn.Module,
        parts: tuple[str, ...],
        loss: Callable[[State], dict[str, Tensor]],
        optimizer: Callable[[list[nn.Parameter], bool], torch.optim.Optimizer],
        draws: State,
        stream: torch.cuda.Stream,
    ) -> CapturedStep:
        began = time.perf_counter()
        held = list(model.state_dict().values())
        before = [value.clone() for value in held]
        trained = train_only(model, parts)
        like = trained[0][1]
        rows = static_rows(draws, like, len(next(iter(draws.values()))))
        terms = compiled(loss) if self._compile else loss
        torch.cuda.synchronize()
        try:
            with torch.cuda.stream(stream):
                step = CapturedStep(terms, optimizer([p for _, p in trained], True), lambda: None, rows, stream)
        finally:  # warming up has trained the model, and memory may have run out in the middle of it
            torch.cuda.synchronize()
            copy_all(held, before)
        how = "compiled and captured" if self._compile else "captured"
        self._say(f"the training of {', '.join(parts)} {how} in {time.perf_counter() - began:.1f} s")
        return step
