"""Several runs at once on a CPU, a process of one thread each: two such beat one process of two threads.

    for number, event in run_all(configs, processes): …

Data are shared through memory-mapped stores. Each run is the run it would be alone with one thread.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from fedbm.config import Config
from fedbm.engine.rounds import Event
from fedbm.errors import FedBMError


def run_all(configs: Sequence[Config], processes: int) -> Iterator[tuple[int, Event | str]]:
    """Events of all runs as they come, by the run's number; for one that failed, the sentence that says why."""
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    waiting = list(enumerate(configs))
    working: dict[int, Any] = {}
    try:
        while waiting or working:
            while waiting and len(working) < processes:
                number, config = waiting.pop(0)
                single = dataclasses.replace(config, engine=dataclasses.replace(config.engine, threads=1))
                working[number] = context.Process(target=_work, args=(number, single, events), daemon=True)
                _start(working[number])
            dead = [number for number, process in working.items() if process.exitcode not in (None, 0)]
            for number in dead:
                yield number, f"its process ended with status {working.pop(number).exitcode}"
            try:
                number, news = events.get(timeout=1.0)
            except queue.Empty:
                continue
            if number not in working:  # what a process that ended had still sent
                continue
            if not isinstance(news, Event):
                working.pop(number).join()
            if news is not None:
                yield number, news
    finally:
        for process in working.values():
            process.terminate()
            process.join()


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


def _work(number: int, config: Config, events: Any) -> None:
    from fedbm.plan import make_plan
    from fedbm.simulate import run

    parent = multiprocessing.parent_process()
    try:
        for event in run(make_plan(config)):
            if parent is not None and not parent.is_alive():  # killed: nobody waits for this run, and it can be resumed
                events.cancel_join_thread()
                return
            events.put((number, event))
        events.put((number, None))
    except FedBMError as error:
        events.put((number, str(error)))
