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
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedbm.engine.device import find_device
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.runs.config import Config

END = None  # what a process is sent in place of a configuration: end this run with the round it is in
MOST_TO_END = 10.0  # seconds that a process without runs has to end by itself

Fits = Callable[[int, int], bool]  # whether the run of this number may begin, beside so many others of its process


@dataclass(eq=False)
class Worker:
    """A process, the runs it has at present, and how many it takes at a time."""

    process: Any
    pipe: Connection  # a pipe each: a process killed while it writes must not lock out the others
    runs_per_gpu: int
    changes: dict[str, Any]  # of the engine's options, for runs given to it
    runs: set[int] = field(default_factory=set)


def run_all(
    configs: Sequence[Config],
    processes: int | None = None,
    fits: Fits | None = None,
    ending: Callable[[int], bool] | None = None,
    left: Callable[[], float | None] = lambda: None,
) -> Generator[tuple[int, Event | str], None, None]:
    """Events of all runs as they come, by the run's number; for one that failed, the sentence that says why.

    *processes*: how many on a CPU; as many as there are cores unless given. Runs are begun in the order given, those
    that do not fit once they do; if nothing is played any more, they are left. Once *ending* says so of a run, it ends
    with the round it is in, of which nothing is lost, and none is begun any more. Closed, or when no second is *left*,
    this ends its runs there and then; they can be resumed from their last checkpoints.
    """
    waiting = list(enumerate(configs))
    places = places_for(configs[0], processes or cores()) if configs else []
    workers: list[Worker] = []
    asked: set[int] = set()
    try:
        while waiting or any(worker.runs for worker in workers):
            for worker in workers:
                for number in worker.runs - asked:
                    if ending is not None and ending(number):
                        asked.add(number)
                        waiting.clear()
                        with suppress(BrokenPipeError):
                            worker.pipe.send((number, END))
            for together, changes in places[len(workers) :] if waiting else ():
                workers.append(_hire(together, changes))
            for worker in sorted(workers, key=lambda worker: len(worker.runs)):
                while len(worker.runs) < worker.runs_per_gpu:
                    beside = len(worker.runs)
                    nearest = next(
                        (i for i, (number, _) in enumerate(waiting) if not fits or fits(number, beside)), None
                    )
                    if nearest is None:
                        break
                    number, config = waiting.pop(nearest)
                    worker.runs.add(number)
                    engine = dataclasses.replace(config.engine, **worker.changes)
                    with suppress(BrokenPipeError):  # it has ended, as is about to be noticed
                        worker.pipe.send((number, dataclasses.replace(config, engine=engine)))
            if not any(worker.runs for worker in workers):
                break  # what is waiting does not fit
            seconds = left()
            heard = wait([worker.pipe for worker in workers], None if seconds is None else max(0.0, seconds))
            for worker in [worker for worker in workers if worker.pipe in heard]:
                try:
                    number, news = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    workers.remove(worker)
                    places.remove(place := (worker.runs_per_gpu, worker.changes))
                    places.append(place)  # the next to be filled
                    for number in worker.runs:
                        yield number, f"its process ended with status {worker.process.exitcode}"
                    continue
                if not isinstance(news, Event):
                    worker.runs.remove(number)
                if news is not None:
                    yield number, news
            if seconds is not None and seconds <= 0:
                break
    finally:
        for worker in workers:
            worker.pipe.close()  # one that has no run ends by itself, in order
        for worker in workers:
            worker.process.join(0 if worker.runs else MOST_TO_END)
            worker.process.terminate()
            worker.process.join()


def places_for(config: Config, processes: int) -> list[tuple[int, dict[str, Any]]]:
    """Where runs like this one are made: for each process, how many go together and what changes in their options."""
    device = find_device(config.engine.device)
    if device.type == "cpu":
        return [(1, {"threads": 1, "workers": 1})] * processes
    named = [device.index] if device.index is not None else range(torch.cuda.device_count())
    return [(config.engine.runs_per_gpu, {"device": f"cuda:{index}"}) for index in named]


def cores() -> int:
    """The cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hire(together: int, changes: dict[str, Any]) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
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


def _work(pipe: Connection) -> None:
    """Advance the runs one has by turns, until nobody is there to be told: then they can be resumed."""
    runs: dict[int, Generator[Event | None, None, None]] = {}
    rounds: dict[int, int] = {}  # of the runs, by their numbers
    ending: set[int] = set()
    while True:
        while pipe.poll(0 if runs else None):
            try:
                number, config = pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            if config is END:
                ending.add(number)
            else:
                runs[number], rounds[number] = _played(config), config.train.rounds
        for number in list(runs):
            told = _turn(runs[number], rounds[number] if number in ending else None)
            if told and not isinstance(told[-1], Event):
                del runs[number]
            try:
                for news in told:
                    pipe.send((number, news))
            except (BrokenPipeError, ConnectionResetError):
                return


def _turn(run: Generator[Event | None, None, None], ending: int | None) -> list[Event | str | None]:
    """What a run tells in its turn; last None where it is over, or why it failed.

    *ending*: its rounds, if it is to end with the one it is in. After the last it ends by itself, all being written.
    """
    try:
        event = next(run)
        if event is None:
            return []
        if ending is not None and event.record is not None and event.round < ending:
            run.close()  # which keeps the round
            return [event, None]
        return [event]
    except StopIteration:
        return [None]
    except FedBMError as error:
        return [str(error)]
    except Exception as error:  # the other runs of this process go on
        traceback.print_exc()
        return [f"{type(error).__name__}: {error}"]


def _played(config: Config) -> Generator[Event | None, None, None]:
    from fedbm.runs.plan import make_plan
    from fedbm.runs.runner import play

    yield from play(make_plan(config))
