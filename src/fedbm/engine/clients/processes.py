"""Clients trained side by side on a CPU, in processes that share the data: two of one thread beat one of two threads.

A run may use as many cores as it has threads. P = min(cores, clients selected a round) processes share them, ⌊cores/P⌋
threads each. With workers = 0 clients are trained in this process, with that many threads, until what is left of the
run is worth the start; so neither time nor chance changes a bit of the result, only how long it takes.

The images are mapped from the prepared store, states pass through files that are never flushed, orders and answers are
lines in pipes. Among the first clients not yet answered the longest starts first; answers come in client order.
"""

from __future__ import annotations

import dataclasses
import pickle
import queue
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedbm.config.options import EngineOptions
from fedbm.engine.clients.base import ClientResult, LocalCohort, LocalSetup, merge_parts
from fedbm.engine.clients.worker_handle import CannotLeave, Worker, heard
from fedbm.engine.clients.worker_process import Work, collected, hand_over, mapped
from fedbm.engine.round_loop import select
from fedbm.errors import FedBMError
from fedbm.methods.base import Method, Part, State, Task, Upload
from fedbm.utils.io import cannot_write

WORTH = 10.0  # seconds of training to be saved before processes are started: they take about three to come up
AHEAD = 4  # clients per process that may be trained before the first of them is answered: bounds what waits

Trained = tuple[int, Callable[[], tuple[Upload, State]]]  # a client, and how to get its upload and new state


def client_cohort(
    setup: LocalSetup, engine: EngineOptions, stored: NDArray[np.uint8], say: Callable[[str], None]
) -> LocalCohort:
    """The clients of a run on this device: in this process, or on a CPU in several. *stored* are the images on disk."""
    device = setup.labels.device
    if device.type != "cpu":
        if engine.workers > 1:
            raise FedBMError(f"workers are processes on a CPU, and the device is {device}; leave workers out")
        return LocalCohort(setup)
    selected = select(len(setup.clients), setup.train.participation, setup.task.seed, 1)
    processes, threads = shares(engine.workers, len(selected))
    if processes == 1:
        return LocalCohort(setup)
    why = unfit(setup.method, setup.task)
    if why is not None:
        say(stays(why))
        return LocalCohort(setup)
    return WorkerCohort(setup, dataclasses.replace(engine, threads=threads), stored, say, processes)


def shares(workers: int, selected: int) -> tuple[int, int]:
    """P = min(asked for or cores, clients selected) processes, ⌊cores/P⌋ threads each; cores: PyTorch's threads."""
    cores = torch.get_num_threads()
    processes = max(1, min(workers or cores, selected))
    return processes, max(1, cores // processes)


def unfit(method: Method, task: Task) -> str | None:
    """Why these objects cannot be handed to another process, or None."""
    try:
        made = pickle.dumps((method, task))
    except Exception as error:  # a lambda, a class made in a function, an open file: each raises its own kind
        return f"{type(error).__name__}: {error}"
    if b"__main__" in made:
        return "it is defined in the program that is running; a module of its own can be imported elsewhere"
    return None


def stays(why: str) -> str:
    return f"clients are trained in this process, for the method or body cannot leave it ({why})"


class WorkerCohort(LocalCohort):
    """Every client in one of several processes of this machine, started once."""

    def __init__(
        self,
        setup: LocalSetup,
        engine: EngineOptions,
        stored: NDArray[np.uint8],
        say: Callable[[str], None],
        processes: int,
    ) -> None:
        super().__init__(setup)
        self._engine, self._stored, self._say, self._limit = engine, stored, say, processes
        self._rest = (setup.labels, tuple(setup.clients))
        self._shared: Path | None = None
        self._work: Work | None = None
        self._workers: list[Worker] = []
        self._news: queue.SimpleQueue[tuple[Worker, bytes]] = queue.SimpleQueue()
        self._measured: list[tuple[int, float]] = []  # samples and seconds of clients trained in this process

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[ClientResult | None]:
        unanswered = list(clients)
        ready: dict[int, Callable[[], tuple[Upload, State]]] = {}
        for trained in self._trained(round_, merge_parts(parts), unanswered):
            if trained is None:
                yield None
                continue
            ready[trained[0]] = trained[1]
            while unanswered and unanswered[0] in ready:
                yield self._accept(round_, *ready.pop(unanswered.pop(0))(), parts)

    def close(self) -> None:
        """End the processes and remove what was shared with them."""
        for worker in self._workers:
            worker.end()
        if self._shared is not None:
            shutil.rmtree(self._shared, ignore_errors=True)
        self._workers, self._work, self._shared = [], None, None

    def _trained(self, round_: int, received: State, unanswered: Sequence[int]) -> Iterator[Trained | None]:
        """Every unanswered client once, as they become ready."""
        waiting = list(unanswered)
        while waiting:
            if self._work is None and self._pays(round_, waiting):
                self._start()
            if self._work is None:
                yield self._train_here(round_, waiting.pop(0), received)
                continue
            try:
                yield from self._train_there(self._work, round_, received, waiting, unanswered)
            except CannotLeave as error:
                self._say(stays(str(error)))
                self.close()
                self._limit = 1

    def _train_here(self, round_: int, client: int, received: State) -> Trained:
        threads = torch.get_num_threads()
        torch.set_num_threads(self._engine.threads)
        started = time.perf_counter()
        try:
            trained = self.train(round_, client, received)
        finally:
            torch.set_num_threads(threads)
        self._measured.append((self._facts[client].n, time.perf_counter() - started))
        return client, lambda: trained

    def _pays(self, round_: int, waiting: Sequence[int]) -> bool:
        """Whether they were asked for, or would save WORTH seconds of what is left by the pace so far."""
        seen = self._measured[1:]  # the first client warms up
        samples = sum(n for n, _ in seen)
        if self._engine.workers or not samples:
            return self._engine.workers > 0 and self._limit > 1
        everyone = sum(facts.n for facts in self._facts.values())
        left = sum(self._facts[client].n for client in waiting)
        left += int((self._train.rounds - round_) * self._train.participation * everyone)
        return left * sum(seconds for _, seconds in seen) / samples * (1 - 1 / self._limit) > WORTH

    def _start(self) -> None:
        try:
            self._shared = Path(tempfile.mkdtemp(prefix="fedbm-"))
            images = mapped(self._stored, self._shared / "images.npy")
        except OSError as error:
            raise cannot_write(Path(tempfile.gettempdir()), error) from error
        labels, clients = self._rest
        self._work = Work(
            self._method, self._task, self._train, self._engine, images, labels, clients, self._states, self._shared
        )
        made = pickle.dumps(self._work)
        try:
            self._workers.extend(Worker(made, self._news) for _ in range(self._limit))
        except OSError as error:
            raise FedBMError(f"client processes cannot be started: {error.strerror}; try workers = 1") from error

    def _train_there(
        self, work: Work, round_: int, received: State, waiting: list[int], unanswered: Sequence[int]
    ) -> Iterator[Trained | None]:
        """Hand the waiting clients to idle processes; *waiting* shrinks as they come back."""
        hand_over(work.received(round_), received)
        idle, busy = list(self._workers), dict[Worker, int]()
        while waiting:
            near = [c for c in unanswered[: AHEAD * self._limit] if c in waiting and c not in busy.values()]
            for client in sorted(near, key=lambda c: (-self._facts[c].n, c))[: len(idle)]:
                worker = idle.pop()
                busy[worker] = client
                worker.tell(round=round_, client=client, since=self._states.rounds.get(client))
            try:
                worker, line = self._news.get(timeout=0.2)
            except queue.Empty:
                yield None
                continue
            if not line:
                raise worker.lost(busy.get(worker))
            answer = heard(line)
            client = busy.pop(worker)
            waiting.remove(client)
            idle.append(worker)
            yield client, partial(collected, work, answer)
        work.received(round_).unlink()
