"""Run several runs in parallel, on all cores or GPUs.

On a CPU each core has a process with one thread and one run; two such processes are faster than one with two threads.
Each GPU has one process. Its runs take turns, each on its own streams, because several streams can use a GPU at
the same time. Several processes can do so only under NVIDIA MPS (`processes_per_gpu`). Processes share the data through
memory-mapped files. A run gives the same result as if it ran alone (on a CPU: with one thread).
If the engine's `on` is ray, a Ray cluster takes the place of these processes (`ray_cluster.py`).
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from fedbm.engine.device import find_device
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.runs.failure import DeviceFailure, Failure
from fedbm.runs.run_config import Config
from fedbm.utils.processes import start_process

MAX_SECONDS_TO_STOP = 5.0  # then a process is killed; if it works on a GPU, this could harm others that share the GPU


class Place(NamedTuple):
    """Where a process can start."""

    capacity: int  # runs that the process takes at a time
    changes: dict[str, Any]  # engine options of these runs


class Job(NamedTuple):
    """A run for a process. The configuration is pickled separately: if it cannot be read, only this run fails."""

    config: bytes
    id: str | None
    deadline: float | None


@dataclass(eq=False)
class RunProcess:
    """A process, its place, and the numbers of its current runs."""

    process: Any
    pipe: Connection  # one per process: a process killed while writing must not block the others
    place: Place
    runs: set[int] = field(default_factory=set)
    works: bool = False  # whether a run has done a round
    failure: DeviceFailure | None = None  # of its GPU; it takes no more runs, and ends

    def stop(self) -> None:
        self.pipe.close()  # the process then ends by itself, after its turn
        self.process.join(MAX_SECONDS_TO_STOP)
        self.process.terminate()
        self.process.join()


def run_all(
    configs: Sequence[Config], ids: Sequence[str] | None = None, deadline: float | None = None
) -> Generator[tuple[int, Event | Failure], None, None]:
    """Run all configurations in parallel; yield (number of the run, event) as they come, or (number, failure).

    Runs start in the order given. A run fails if the files it reads have changed, so that its id is not the one in
    *ids*. A run stops after a round, which is saved, if its next round would end after the *deadline* (a time of
    time.time()). At the deadline, or if the generator is closed, all runs stop within seconds; they can be resumed from
    their last checkpoints.
    """
    if not configs:
        return
    if configs[0].engine.on == "ray":
        from fedbm.runs.ray_cluster import run_on_cluster

        yield from run_on_cluster(configs, ids, deadline)
        return
    waiting = list(enumerate(configs))
    free = places_for(configs[0])[: len(configs)]  # places without a process
    workers: list[RunProcess] = []
    try:
        while waiting or any(worker.runs for worker in workers):
            if waiting:
                workers += map(_start_worker, free)
                free = []
            for worker in sorted(workers, key=lambda worker: len(worker.runs)):
                while waiting and len(worker.runs) < worker.place.capacity and worker.failure is None:
                    number, config = waiting.pop(0)
                    worker.runs.add(number)
                    config = config.with_values("engine", **worker.place.changes)
                    job = Job(pickle.dumps(config), ids[number] if ids else None, deadline)
                    with suppress(BrokenPipeError):  # it has ended
                        worker.pipe.send((number, job))
            seconds = seconds_until(deadline)
            ready = wait([worker.pipe for worker in workers], seconds)
            for worker in [worker for worker in workers if worker.pipe in ready]:
                try:
                    number, news = worker.pipe.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    if worker.failure is None or worker.works or not workers:  # else its GPU has never worked
                        free.append(worker.place)
                    worker.process.join()
                    for number in worker.runs:
                        ended = Failure(f"its process ended with status {worker.process.exitcode}")
                        yield number, worker.failure or ended
                    continue
                if isinstance(news, DeviceFailure):
                    worker.failure = news
                if not isinstance(news, Event):
                    worker.runs.discard(number)
                else:
                    worker.works |= news.record is not None
                    if is_last_round(news, deadline):
                        waiting.clear()
                if news is not None:
                    yield number, news
            if seconds == 0:
                break
    finally:
        with ThreadPoolExecutor(len(workers) or 1) as threads:  # one after the other, their last turns would add up
            list(threads.map(lambda worker: worker.stop(), workers))


def seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.time())


def is_last_round(event: Event, deadline: float | None) -> bool:
    """Return whether a run must stop after this event: if its next round takes as long, it ends after the deadline.

    After its last round a run only writes its files.
    """
    if deadline is None or event.record is None or event.last:
        return False
    return time.time() + event.record.seconds["total"] > deadline


def places_for(config: Config) -> list[Place]:
    """Return the places for processes on this machine."""
    device = find_device(config.engine.device)
    if device.type == "cpu":
        return [Place(1, {"threads": 1, "workers": 1})] * cores()
    named = [device.index] if device.index is not None else range(torch.cuda.device_count())
    runs, count = config.engine.runs_per_gpu, config.engine.processes_per_gpu
    shares = [len(range(first, runs, count)) for first in range(min(count, runs))]  # runs of each process of a GPU
    return [Place(share, {"device": f"cuda:{index}"}) for index in named for share in shares]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(place: Place) -> RunProcess:
    return RunProcess(*start_process(_work), place)


def _work(pipe: Connection) -> None:
    """Advance the runs of this process in turns until the parent closes the pipe.

    The pipe brings (number, job) and takes (number, news). The news None means that the run is over. If the GPU fails,
    all runs of the process fail, and the process ends.
    """
    runs: dict[int, Generator[Event | None, None, None]] = {}
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            while pipe.poll(0 if runs else None):
                number, job = pipe.recv()
                runs[number] = advance_run(job)
            for number, run in list(runs.items()):
                news: Event | Failure | None = None
                try:
                    news = next(run)
                    if news is None:  # the run waits
                        continue
                except StopIteration:
                    del runs[number]
                except Exception as error:  # the other runs of this process continue
                    del runs[number]
                    news = Failure.of(error)
                pipe.send((number, news))
                if isinstance(news, DeviceFailure):
                    for other in runs:
                        pipe.send((other, news))
                    return


def advance_run(job: Job) -> Generator[Event | None, None, None]:
    """Yield the events of a run, and None while it waits."""
    from fedbm.runs.plan import make_plan
    from fedbm.runs.runner import iterate_run

    plan = make_plan(pickle.loads(job.config))  # imports the file of a user's method
    if job.id not in (None, plan.id):
        raise FedBMError("its data or its method's file changed after the command started. Run the command again.")
    yield from stop_in_time(iterate_run(plan), job.deadline)


def stop_in_time(
    events: Generator[Event | None, None, None], deadline: float | None
) -> Generator[Event | None, None, None]:
    """Yield the events of a run, and stop it after a round if the next would end after the deadline."""
    with closing(events):  # writes a checkpoint
        for event in events:
            yield event
            if event is not None and is_last_round(event, deadline):
                return
