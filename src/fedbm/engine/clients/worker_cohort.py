"""Clients trained in parallel on a CPU, in processes that share the images.

A run uses as many cores as it has threads. P = min(cores, clients selected per round) processes get ⌊cores/P⌋ threads
each, which is faster than one process with all threads. With workers = 0, clients are first trained in this process,
also with ⌊cores/P⌋ threads, and processes start only if they save time. The result is the same bit for bit.

The images are mapped from the prepared store. States pass through files in a temporary folder; orders and replies are
lines in pipes. Large clients start first, and results are yielded in client order.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedbm.config.options import EngineOptions
from fedbm.engine.checkpoint import Progress
from fedbm.engine.clients.cohort import ClientResult, LocalSetup, merge_pieces
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.clients.worker_process import ClientWork, share_array, write_states
from fedbm.errors import FedBMError
from fedbm.methods.base import Pieces, State, Upload
from fedbm.utils.io import cannot_write

MIN_SECONDS_SAVED = 10.0  # processes start only if they save this; a start takes three seconds
MAX_CLIENTS_AHEAD = 4  # per process, of the first client without a result: bounds the results on disk

_BOOT = (  # unlike multiprocessing this does not import the user's program again, so a script needs no __main__ guard
    "import json, sys; orders = sys.stdin.buffer; sys.path[:] = json.loads(orders.readline()); "
    "work = orders.read(int(orders.readline())); from fedbm.engine.clients.worker_process import main; main(work)"
)


def explain_one_process(problem: str) -> str:
    """Return the note for the user if client processes cannot load the method or body."""
    return f"clients are trained in this process because the method or body cannot be sent to others ({problem})"


class WorkerCohort(LocalCohort):
    """Clients trained in several processes of this machine, which are started once."""

    def __init__(
        self,
        setup: LocalSetup,
        engine: EngineOptions,
        stored: NDArray[np.uint8],
        notify: Callable[[str], None],
        processes: int,
    ) -> None:
        super().__init__(setup)
        self._setup, self._engine, self._stored, self._notify = setup, engine, stored, notify
        self._processes = processes
        self._folder: Path | None = None  # shared with the processes
        self._work: ClientWork | None = None
        self._workers: list[ClientProcess] = []
        self._replies: queue.SimpleQueue[tuple[ClientProcess, bytes]] = queue.SimpleQueue()
        self._measured: list[tuple[int, float]] = []  # samples and seconds of clients trained in this process

    def exchange(self, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        received, remaining = merge_pieces(pieces), list(clients)
        while remaining:
            if self._work is None and self._should_start(round_, remaining):
                self._work = self._start()
            if self._work is None:
                yield self._accept(round_, *self._train_here(round_, remaining.pop(0), received), pieces)
                continue
            try:
                for trained in self._train_in_workers(self._work, round_, received, remaining):
                    yield None if trained is None else self._accept(round_, *trained, pieces)
            except CannotUnpickle as error:
                self._notify(explain_one_process(str(error)))
                self.close()
                self._processes = 1

    def close(self) -> None:
        """End the processes and remove the files shared with them."""
        for worker in self._workers:
            worker.end()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._workers, self._work, self._folder = [], None, None

    def _train_here(self, round_: int, client: int, received: State) -> tuple[Upload, State]:
        threads = torch.get_num_threads()
        torch.set_num_threads(self._engine.threads)
        started = time.perf_counter()
        try:
            return self.train(round_, client, received)
        finally:
            torch.set_num_threads(threads)
            self._measured.append((self._facts[client].n, time.perf_counter() - started))

    def _should_start(self, round_: int, remaining: Sequence[int]) -> bool:
        """Return whether processes were requested, or would save MIN_SECONDS_SAVED at the speed so far."""
        if self._engine.workers:
            return self._processes > 1
        measured = self._measured[1:]  # the first client includes warming up
        samples = sum(n for n, _ in measured)
        if not samples:
            return False
        later_rounds = (self._train.rounds - round_) * self._train.participation
        ahead = sum(self._facts[client].n for client in remaining)
        ahead += int(later_rounds * sum(facts.n for facts in self._facts.values()))
        seconds = ahead * sum(seconds for _, seconds in measured) / samples
        return seconds * (1 - 1 / self._processes) > MIN_SECONDS_SAVED

    def _start(self) -> ClientWork:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="fedbm-"))
            images = share_array(self._stored, self._folder / "images.npy")
        except OSError as error:
            raise cannot_write(Path(tempfile.gettempdir()), error) from error
        # each process makes its own model and maps the images
        setup = dataclasses.replace(self._setup, model=nn.Identity(), images=torch.empty(0), progress=Progress())
        work = ClientWork(setup, self._engine, images, self._folder)
        pickled = pickle.dumps(work)
        try:
            self._workers.extend(ClientProcess(pickled, self._replies) for _ in range(self._processes))
        except OSError as error:
            raise FedBMError(f"client processes cannot be started: {error.strerror}; try workers = 1") from error
        return work

    def _train_in_workers(
        self, work: ClientWork, round_: int, received: State, remaining: list[int]
    ) -> Iterator[tuple[Upload, State] | None]:
        """Yield what the *remaining* clients trained, in order, and None while waiting; *remaining* becomes empty."""
        write_states(work.received_path(round_), received)
        waiting, idle = list(remaining), list(self._workers)
        busy: dict[ClientProcess, int] = {}
        finished: dict[int, dict[str, Any]] = {}
        while remaining:
            near = [client for client in remaining[: MAX_CLIENTS_AHEAD * self._processes] if client in waiting]
            for client in sorted(near, key=lambda client: (-self._facts[client].n, client))[: len(idle)]:
                worker = idle.pop()
                waiting.remove(client)
                busy[worker] = client
                worker.send(round=round_, client=client, state_round=self._states.rounds.get(client))
            try:
                worker, line = self._replies.get(timeout=0.2)
            except queue.Empty:
                yield None
                continue
            if not line:
                raise worker.exit_error(busy.get(worker))
            reply = json.loads(line)
            if "error" in reply:
                raise ERRORS[reply["error"]](reply["message"])
            finished[busy.pop(worker)] = reply
            idle.append(worker)
            while remaining and remaining[0] in finished:
                yield work.take_result(finished.pop(remaining.pop(0)))
        work.received_path(round_).unlink()


class ClientProcess:
    """A client process, and a thread that reads its replies. `worker_process.py` describes the messages."""

    def __init__(self, pickled_work: bytes, replies: queue.SimpleQueue[tuple[ClientProcess, bytes]]) -> None:
        # in its own session: Ctrl-C reaches only the parent, which then ends its processes
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        paths = json.dumps([str(path) for path in sys.path]).encode()
        self._write(paths + b"\n%d\n" % len(pickled_work) + pickled_work)
        threading.Thread(target=self._read_replies, args=(replies,), daemon=True).start()

    def send(self, **order: Any) -> None:
        """Send one order."""
        self._write(json.dumps(order).encode() + b"\n")

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def exit_error(self, client: int | None) -> FedBMError:
        """Return the error for a process that has ended unexpectedly."""
        status = self._process.wait()
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        task = "waiting" if client is None else f"training client {client}"
        advice = "; if memory is short, use fewer workers" if status == -9 else ""
        return FedBMError(
            f"a client process {how} while {task}{advice}; run this again to resume from the last checkpoint"
        )

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, which _read_replies reports
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _read_replies(self, replies: queue.SimpleQueue[tuple[ClientProcess, bytes]]) -> None:
        """Pass on every line, and an empty one at the end."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                replies.put((self, line))
        replies.put((self, b""))


class CannotUnpickle(Exception):
    """A client process could not load the method or body."""


ERRORS = {"unpickle": CannotUnpickle, "user": FedBMError, "bug": RuntimeError}  # as client processes name them
