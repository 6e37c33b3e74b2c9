"""Several runs at once, on all that is there:

    for number, event in run_all(configs): …

On a CPU, a process of one thread per core, a run each: two such beat one process of two threads. On GPUs, a process
per device in which `together` runs go by turns, each on streams of its own: processes sharing a GPU only take turns,
streams fill it. Data are shared through memory-mapped stores, and once per device. Each run is the run it would be
alone (on a CPU: with one thread).
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedbm.config import Config
from fedbm.engine.device import find_device
from fedbm.engine.rounds import Event
from fedbm.errors import FedBMError


@dataclass(eq=False)
class Worker:
    """A process, the runs it has at present, and how many it takes at a time."""

    process: Any
    tasks: Any
    together: int
    changes: dict[str, Any]  # of the engine's options, for runs given to it
    runs: set[int] = field(default_factory=set)


def run_all(configs: Sequence[Config], processes: int | None = None) -> Generator[tuple[int, Event | str], None, None]:
    """Events of all runs as they come, by the run's number; for one that failed, the sentence that says why.

    *processes*: how many on a CPU; as many as there are cores unless given. Runs are begun in the order given. Closed,
    it ends them; they can be resumed.
    """
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    waiting = list(enumerate(configs))
    places = places_for(configs[0], processes or cores()) if configs else []
    workers: list[Worker] = []
    try:
        while waiting or any(worker.runs for worker in workers):
            for together, changes in places[len(workers) :] if waiting else ():
                workers.append(_hire(context, events, together, changes))
            for worker in sorted(workers, key=lambda worker: len(worker.runs)):
                while waiting and len(worker.runs) < worker.together:
                    number, config = waiting.pop(0)
                    engine = dataclasses.replace(config.engine, **worker.changes)
                    worker.tasks.send((number, dataclasses.replace(config, engine=engine)))
                    worker.runs.add(number)
            for worker in [worker for worker in workers if worker.process.exitcode is not None]:
                workers.remove(worker)
                places.remove(place := (worker.together, worker.changes))
                places.append(place)  # the next to be filled
                for number in worker.runs:
                    yield number, f"its process ended with status {worker.process.exitcode}"
            try:
                number, news = events.get(timeout=1.0)
            except queue.Empty:
                continue
            holder = next((worker for worker in workers if number in worker.runs), None)
            if holder is None:  # what a process that ended had still sent
                continue
            if not isinstance(news, Event):
                holder.runs.remove(number)
            if news is not None:
                yield number, news
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


def places_for(config: Config, processes: int) -> list[tuple[int, dict[str, Any]]]:
    """Where runs like this one are made: for each process, how many go together and what changes in their options."""
    device = find_device(config.engine.device)
    if device.type == "cpu":
        return [(1, {"threads": 1, "workers": 1})] * processes
    named = [device.index] if device.index is not None else range(torch.cuda.device_count())
    return [(config.engine.together, {"device": f"cuda:{index}"}) for index in named]


def cores() -> int:
    """The cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hire(context: Any, events: Any, together: int, changes: dict[str, Any]) -> Worker:
    theirs, ours = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, events), daemon=True)
    _start(process)
    theirs.close()
    return Worker(process, ours, together, changes)


def _start(process: Any) -> None:
    """Start with Ctrl-C ignored, which a child inherits: the parent hears it, ends its children and says so once."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        process.start()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def _work(tasks: Any, events: Any) -> None:
    """Advance the runs one has by turns, until nobody gives any more: the parent has ended, and runs can be resumed."""
    runs: dict[int, Iterator[Event | None]] = {}
    parent = multiprocessing.parent_process()
    while parent is None or parent.is_alive():
        try:
            while tasks.poll(0 if runs else None):
                number, config = tasks.recv()
                runs[number] = _played(config)
        except EOFError:
            break
        for number in list(runs):
            try:
                event = next(runs[number])
            except (StopIteration, FedBMError) as end:
                del runs[number]
                events.put((number, str(end) if isinstance(end, FedBMError) else None))
            else:
                if event is not None:
                    events.put((number, event))
    events.cancel_join_thread()


def _played(config: Config) -> Iterator[Event | None]:
    from fedbm.plan import make_plan
    from fedbm.simulate import play

    yield from play(make_plan(config))
