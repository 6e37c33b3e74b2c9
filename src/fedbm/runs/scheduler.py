"""Run several runs in parallel, on all cores or GPUs.

On a CPU each core has a process with one thread and one run; two such processes are faster than one with two threads.
Each GPU has one process. Its runs take turns, each on its own streams, because several streams can use a GPU at
the same time. Several processes can do so only under NVIDIA MPS (`processes_per_gpu`). Processes share the data through
memory-mapped files. A run gives the same result as if it ran alone (on a CPU: with one thread).
The workers of a Ray cluster take the place of these processes if the engine's `on` is ray (`ray_cluster.py`).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import torch

from fedbm.engine.device import find_device
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.runs.failure import DeviceFailure, Failure
from fedbm.runs.run_config import Config
from fedbm.utils.processes import start_process
from fedbm.utils.text import format_count

END = None  # sent in place of a job: stop this run after its current round
MAX_SECONDS_TO_END = 10.0  # for an idle process
MAX_SECONDS_OF_TURN = 3.0  # for a busy one: killed during its work on a GPU, it could harm others that share the GPU
Place = tuple[int, dict[str, Any]]  # how many runs a worker takes at a time, and which engine options change for them


class Job(NamedTuple):
    """A run for a process. The configuration is pickled separately: if it cannot be read, only this run fails."""

    config: bytes
    id: str | None


class Worker(Protocol):
    """A process, here or on another machine, and the numbers of its current runs."""

    runs_per_gpu: int
    changes: dict[str, Any]
    runs: set[int]

    def send(self, number: int, job: Job | None) -> None:
        """Send a run, or END; nothing happens if the worker has ended."""

    def receive(self) -> tuple[int, Event | Failure | None]:
        """Return the next news; raise EOFError if the worker has ended."""

    def why_ended(self) -> str:
        """Return a sentence about a worker that has ended."""

    def stop(self) -> None:
        """End the worker and its runs."""


class Pool(NamedTuple):
    """Where workers can start, and how to start them and wait for them."""

    places: list[Place]
    start: Callable[[int, dict[str, Any]], Worker]
    wait: Callable[[Sequence[Any], float | None], Sequence[Worker]]  # returns the workers with news


@dataclass(eq=False)
class RunProcess:
    """A worker on this machine."""

    process: Any
    pipe: Connection  # one per process: a process killed while writing must not block the others
    runs_per_gpu: int
    changes: dict[str, Any]
    runs: set[int] = field(default_factory=set)

    def send(self, number: int, job: Job | None) -> None:
        with suppress(BrokenPipeError):
            self.pipe.send((number, job))

    def receive(self) -> tuple[int, Event | Failure | None]:
        try:
            news: tuple[int, Event | Failure | None] = self.pipe.recv()
        except OSError as error:
            raise EOFError from error
        return news

    def why_ended(self) -> str:
        self.process.join()
        return f"its process ended with status {self.process.exitcode}"

    def stop(self) -> None:
        self.pipe.close()  # the process then ends by itself, after its turn
        self.process.join(MAX_SECONDS_OF_TURN if self.runs else MAX_SECONDS_TO_END)
        self.process.terminate()
        self.process.join()


def run_all(
    configs: Sequence[Config],
    processes: int | None = None,
    ids: Sequence[str] | None = None,
    is_last_round: Callable[[int], bool] = lambda number: False,
    remaining: Callable[[], float | None] = lambda: None,
) -> Generator[tuple[int, Event | Failure], None, None]:
    """Run all configurations in parallel; yield (number of the run, event) as they come, or (number, failure).

    Runs start in the order given, in at most *processes* on a CPU; by default one per core. A run fails if the files it
    reads have changed, so that its id is not the one in *ids*. If the generator is closed, or no seconds are
    *remaining*, all runs stop within seconds; they can be resumed from their last checkpoints. If is_last_round(number)
    is True, the run stops after its current round, which is saved, and no further run starts. Raise FedBMError if runs
    are waiting, but the GPU failed in every process before a round was done.
    """
    waiting = list(enumerate(configs))
    pool = find_pool(configs[0], processes) if configs else Pool([], _start_worker, _wait)
    places = pool.places[: len(configs)]
    workers: list[Worker] = []
    asked: set[int] = set()
    useful: set[Worker] = set()  # workers that have done a round
    broken: dict[Worker, Failure] = {}
    try:
        while waiting or any(worker.runs for worker in workers):
            for worker in workers:
                for number in worker.runs - asked:
                    if is_last_round(number):
                        asked.add(number)
                        waiting.clear()
                        worker.send(number, END)
            if waiting:
                workers += [pool.start(*place) for place in places[len(workers) :]]
            for worker in sorted((w for w in workers if w not in broken), key=lambda worker: len(worker.runs)):
                while waiting and len(worker.runs) < worker.runs_per_gpu:
                    number, config = waiting.pop(0)
                    worker.runs.add(number)
                    config = config.with_values("engine", **worker.changes)
                    worker.send(number, Job(pickle.dumps(config), ids[number] if ids else None))
            seconds = remaining()
            for worker in pool.wait(workers, None if seconds is None else max(0.0, seconds)):
                try:
                    number, news = worker.receive()
                except EOFError:
                    workers.remove(worker)
                    places.remove(place := (worker.runs_per_gpu, worker.changes))
                    if worker in useful or worker not in broken:
                        places.append(place)  # a new worker takes the place
                    for number in worker.runs:
                        yield number, broken.get(worker) or Failure(worker.why_ended())
                    if waiting and not places:
                        why = f"{format_count(len(waiting), 'run')} did not start. {broken[worker].reason}"
                        raise FedBMError(f"{why}. Run the same command again to continue.") from None
                    continue
                if not isinstance(news, Event):
                    worker.runs.discard(number)
                elif news.record is not None:
                    useful.add(worker)
                if isinstance(news, DeviceFailure):
                    broken[worker] = news
                if news is not None:
                    yield number, news
            if seconds is not None and seconds <= 0:
                break
    finally:
        with ThreadPoolExecutor(len(workers) or 1) as threads:  # one after the other, their last turns would add up
            list(threads.map(lambda worker: worker.stop(), workers))


def find_pool(config: Config, processes: int | None = None) -> Pool:
    """Return where runs with this configuration can execute: on this machine, or on a Ray cluster."""
    if config.engine.on == "ray":
        from fedbm.runs.ray_cluster import connect

        return connect(config)
    return Pool(places_for(config, processes or cores()), _start_worker, _wait)


def places_for(config: Config, processes: int) -> list[Place]:
    """Return the places for processes on this machine."""
    device = find_device(config.engine.device)
    if device.type == "cpu":
        return [(1, {"threads": 1, "workers": 1})] * processes
    named = [device.index] if device.index is not None else range(torch.cuda.device_count())
    return [(share, {"device": f"cuda:{index}"}) for index in named for share in gpu_shares(config)]


def gpu_shares(config: Config) -> list[int]:
    """Return how many runs each process of one GPU takes."""
    runs, count = config.engine.runs_per_gpu, config.engine.processes_per_gpu
    return [len(range(first, runs, count)) for first in range(min(count, runs))]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(runs_per_gpu: int, changes: dict[str, Any]) -> RunProcess:
    return RunProcess(*start_process(_work), runs_per_gpu, changes)


def _wait(workers: Sequence[RunProcess], seconds: float | None) -> list[Worker]:
    ready = wait([worker.pipe for worker in workers], seconds)
    return [worker for worker in workers if worker.pipe in ready]


def _work(pipe: Connection) -> None:
    """Advance the runs of this process in turns until the parent closes the pipe."""

    def receive(is_busy: bool) -> Iterator[tuple[int, Job | None]]:
        while pipe.poll(0 if is_busy else None):
            is_busy = True
            yield pipe.recv()

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        for news in advance_runs(receive):
            pipe.send(news)


def advance_runs(
    receive: Callable[[bool], Iterator[tuple[int, Job | None]]],
) -> Generator[tuple[int, Event | Failure | None], None, None]:
    """Advance several runs in turns and yield (number, news). The news None means that the run is over.

    *receive* returns the messages that have arrived: (number, job), or (number, END). If its argument is False, no run
    is active, and it waits for a message. If the GPU fails, all runs of the process fail, and the iteration ends.
    """
    runs: dict[int, Generator[Event | None, None, None]] = {}
    ending: set[int] = set()
    is_broken = False
    while runs or not is_broken:
        for number, job in receive(bool(runs)):
            if job is END:
                ending.add(number)
            else:
                runs[number] = _advance(job)
        for number in list(runs):
            news = _turn(runs[number], number in ending)
            if news and not isinstance(news[-1], Event):
                del runs[number]
            for one in news:
                is_broken |= isinstance(one, DeviceFailure)
                yield number, one


def _turn(run: Generator[Event | None, None, None], ending: bool) -> list[Event | Failure | None]:
    """Return a run's events of one turn; the last is None if the run is over, or the failure.

    *ending*: whether the run must stop after its current round.
    """
    try:
        event = next(run)
        if event is None:
            return []
        if ending and event.record is not None and not event.last:
            run.close()  # writes a checkpoint
            return [event, None]
        return [event]
    except StopIteration:
        return [None]
    except Exception as error:  # the other runs of this process continue
        return [Failure.of(error)]


def _advance(job: Job) -> Generator[Event | None, None, None]:
    from fedbm.runs.plan import make_plan
    from fedbm.runs.runner import iterate_run

    plan = make_plan(pickle.loads(job.config))  # imports the file of a user's method
    if job.id not in (None, plan.id):
        raise FedBMError("its data or its method's file changed after the command started. Run the command again.")
    yield from iterate_run(plan)
