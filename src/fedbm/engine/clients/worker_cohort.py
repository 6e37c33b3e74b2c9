"""Clients trained in parallel on a CPU, in processes that share the images.

A run uses as many cores as it has threads. P = min(cores, clients selected per round) processes get ⌊cores/P⌋ threads
each, which is faster than one process with all threads. With workers = 0, a short run trains its clients in this
process, also with ⌊cores/P⌋ threads. The result is the same bit for bit.

The images are mapped from the prepared store. A client's state is read from the run's folder; everything else passes
through a pipe. Large clients start first, and results are yielded in client order.

    work      (LocalSetup without model and images, EngineOptions, path of the images as a .npy file)
    order     (round, client, round of the client's saved state or None, received tensors or None if they are as before)
    answer    (upload, new state of the client), or the error that stops the run

Messages are pickled bytes: Connection.send() would put the tensors into shared memory, which can be small.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from torch import nn

from fedbm.config.options import EngineOptions
from fedbm.engine.checkpoint import Progress
from fedbm.engine.clients.cohort import ClientResult, LocalSetup, merge_pieces
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.device import explain_memory_errors, numeric_settings
from fedbm.errors import FedBMError
from fedbm.methods.base import Pieces, State, Upload
from fedbm.utils.processes import start_process

MIN_PIXEL_VALUES = 5e6  # in the images of all local steps; for fewer, processes do not save the time of their start
MAX_CLIENTS_AHEAD = 2  # per process, of the first client without a result: bounds the results in memory


class WorkerCohort(LocalCohort):
    """Clients trained in several processes of this machine, which are started once."""

    def __init__(self, setup: LocalSetup, engine: EngineOptions, stored: NDArray[np.uint8], processes: int) -> None:
        super().__init__(setup)
        self._setup, self._engine, self._stored, self._processes = setup, engine, stored, processes
        self._folder: Path | None = None  # temporary files
        self._workers: dict[Connection, BaseProcess] = {}
        train, samples = setup.train, sum(len(own) for own in setup.clients)
        passes = (train.rounds - setup.progress.round) * train.epochs * train.participation
        self._is_short = not engine.workers and passes * samples * setup.images[0].numel() < MIN_PIXEL_VALUES

    def exchange(self, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        if self._is_short:
            yield from super().exchange(round_, clients, pieces)
            return
        if not self._workers:
            self._start()
        for trained in self._train_in_workers(round_, clients, merge_pieces(pieces)):
            yield None if trained is None else self._accept(round_, *trained, pieces)

    def train(self, round_: int, client: int, received: State) -> tuple[Upload, State]:
        """Train one client in this process, with as many threads as a client process has."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self._engine.threads)
        try:
            return super().train(round_, client, received)
        finally:
            torch.set_num_threads(threads)

    def close(self) -> None:
        """End the processes and remove their files."""
        for pipe, process in self._workers.items():
            pipe.close()
            process.kill()
            process.join()
        self._workers.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        """Start the processes. Each one makes its own model and maps the images."""
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="fedbm-"))
            images = share_array(self._stored, self._folder / "images.npy")
            setup = dataclasses.replace(self._setup, model=nn.Identity(), images=torch.empty(0), progress=Progress())
            work = pickle.dumps((setup, self._engine, images))
            for _ in range(self._processes):
                process, pipe = start_process(main, self._folder)
                self._workers[pipe] = process
            for pipe in self._workers:
                pipe.send_bytes(work)  # waits until the process has imported PyTorch
        except OSError as error:
            raise FedBMError(
                f"client processes cannot be started: {error}; free some space, or use workers = 1"
            ) from error

    def _train_in_workers(
        self, round_: int, clients: Sequence[int], received: State
    ) -> Iterator[tuple[Upload, State] | None]:
        """Yield the upload and the new state of each client in order, and None while waiting."""
        waiting, idle, informed = list(clients), list(self._workers), set[Connection]()
        busy: dict[Connection, int] = {}
        finished: dict[int, tuple[Upload, State]] = {}
        for number, client in enumerate(clients):
            while client not in finished:
                last = number + MAX_CLIENTS_AHEAD * self._processes
                near = [client for client in clients[number:last] if client in waiting]
                for chosen in sorted(near, key=lambda client: -self._facts[client].n)[: len(idle)]:
                    pipe = idle.pop()
                    order = round_, chosen, self._states.rounds.get(chosen), None if pipe in informed else received
                    with suppress(OSError):  # the process has ended, which _receive() reports
                        pipe.send_bytes(pickle.dumps(order))
                    informed.add(pipe)
                    waiting.remove(chosen)
                    busy[pipe] = chosen
                ready = wait(list(busy), timeout=0.2)
                if not ready:
                    yield None
                for pipe in [pipe for pipe in busy if pipe in ready]:
                    finished[busy[pipe]] = self._receive(pipe, busy[pipe])
                    del busy[pipe]
                    idle.append(pipe)
            yield finished.pop(client)

    def _receive(self, pipe: Connection, client: int) -> tuple[Upload, State]:
        try:
            answer = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError) as error:
            self._workers[pipe].join()
            raise FedBMError(
                f"the process that trained client {client} ended with status {self._workers[pipe].exitcode}; if memory "
                "is short, use fewer workers. Run this again to resume from the last checkpoint."
            ) from error
        if isinstance(answer, Exception):
            raise answer
        trained: tuple[Upload, State] = answer
        return trained


def share_array(array: NDArray[np.uint8], spare: Path) -> Path:
    """Return the .npy file of *array*, for another process. If it has none or was changed in memory, write *spare*."""
    if isinstance(array, np.memmap) and array.filename is not None:
        with suppress(OSError, ValueError):  # its file is gone, or not a .npy file
            stored = open_memmap(array.filename, mode="c")
            parts = (slice(first, first + 256) for first in range(0, len(array), 256))  # all at once would take memory
            same = (stored.shape, stored.dtype) == (array.shape, array.dtype)
            if same and all(np.array_equal(array[part], stored[part]) for part in parts):
                return Path(array.filename)
    np.save(spare, array, allow_pickle=False)
    return spare


def main(pipe: Connection, folder: Path) -> None:
    """Serve the parent of this client process until it ends, then remove its temporary *folder*."""
    if hasattr(os, "setsid"):
        os.setsid()  # a closed terminal ends only the parent; this process then removes the folder
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has ended
        serve(pipe)


def _end_with_parent(folder: Path) -> None:
    """End this process when its parent has ended, even within a step."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def serve(pipe: Connection) -> None:
    """Train one client per order, until the parent closes the pipe."""
    try:
        setup, engine, stored = pickle.loads(pipe.recv_bytes())  # safe: it comes from the parent process
        model, images = setup.method.model(setup.task), torch.from_numpy(np.load(stored, mmap_mode="c"))
    except Exception as error:  # importing the user's modules can raise anything
        problem = f"{type(error).__name__}: {error}"
        pipe.send_bytes(pickle.dumps(FedBMError(f"a client process cannot start ({problem}); use workers = 1")))
        return
    cohort = LocalCohort(dataclasses.replace(setup, model=model, images=images))
    received: State = {}
    answer: tuple[Upload, State] | Exception
    with numeric_settings(engine, setup.train.precision):
        while True:
            round_, client, state_round, changed = pickle.loads(pipe.recv_bytes())
            received = received if changed is None else changed
            if state_round is not None:
                setup.states.rounds[client] = state_round
            try:
                with explain_memory_errors(setup.labels.device):
                    answer = cohort.train(round_, client, received)
            except FedBMError as error:
                answer = FedBMError(str(error))
            except Exception:  # a mistake in a method: its author needs the traceback
                answer = RuntimeError(f"in a client process:\n{traceback.format_exc()}")
            pipe.send_bytes(pickle.dumps(answer))
