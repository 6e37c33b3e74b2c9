"""The main program of a client process: it reads orders as lines, trains clients, and writes replies as lines.

    standard input    the pickled ClientWork, then {"round": 3, "client": 7, "state_round": 2} …
    standard output   {"client": 7, "n": 40, "losses": {…}, "seconds": 1.2}; the tensors are in the shared folder
                      or {"error": "user" | "bug" | "unpickle", "message": …}

`state_round` is the round in which the client's state was last written to the run's folder. When standard input ends,
the parent has ended: the process removes the shared folder and exits at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
import queue
import shutil
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedbm.config.options import EngineOptions
from fedbm.engine.clients.cohort import LocalSetup
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.device import explain_memory_errors, numeric_settings
from fedbm.errors import FedBMError
from fedbm.methods.base import State, Upload


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


@dataclass(frozen=True)
class ClientWork:
    """What a client process needs before the first round, and the files that it shares with its parent."""

    setup: LocalSetup  # without model and images
    engine: EngineOptions
    images: Path  # a .npy file
    folder: Path

    def received_path(self, round_: int) -> Path:
        return self.folder / f"received-{round_}.safetensors"

    def result_path(self, client: int) -> Path:
        return self.folder / f"result-{client}.safetensors"

    def take_result(self, reply: Mapping[str, Any]) -> tuple[Upload, State]:
        """Return the upload and the new state of the client in *reply*, and remove their file."""
        path = self.result_path(reply["client"])
        upload, own = read_states(path)
        path.unlink()
        return Upload(reply["client"], reply["n"], upload, reply["losses"], reply["seconds"]), own


def write_states(path: Path, *states: State) -> None:
    """Write states for another process, without fsync, because the file need not outlast the run."""
    values = [value for state in states for value in state.values()]
    numbered = {str(number): value.detach().cpu().contiguous().clone() for number, value in enumerate(values)}
    try:
        save_file(numbered, path, {"names": json.dumps([list(state) for state in states])})
    except (OSError, SafetensorError) as error:
        raise FedBMError(f"cannot write {path}: {error}; free some space or set TMPDIR to another folder") from error


def read_states(path: Path) -> list[State]:
    """Return the states that write_states() wrote, with names in the same order and in this process's own memory."""
    with safe_open(path, framework="pt") as file:
        numbers = itertools.count()
        names = json.loads(file.metadata()["names"])
        return [{name: file.get_tensor(str(next(numbers))).clone() for name in some} for some in names]


def main(pickled_work: bytes) -> None:
    """Train clients as the parent process orders. What a method prints goes to standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work: ClientWork = pickle.loads(pickled_work)  # safe: it comes from the parent process, through its pipe
    except Exception as error:  # importing the user's modules can raise anything
        reply(replies, error="unpickle", message=f"{type(error).__name__}: {error}")
        return
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read_orders, args=(orders, work.folder), daemon=True).start()
    with numeric_settings(work.engine, work.setup.train.precision):
        serve(work, orders, replies)


def read_orders(orders: queue.SimpleQueue[bytes], folder: Path) -> None:
    """Queue the lines of standard input. End this process when there are no more, even within a step."""
    for line in sys.stdin.buffer:
        orders.put(line)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def serve(work: ClientWork, orders: queue.SimpleQueue[bytes], replies: IO[str]) -> None:
    """Train one client per order until the process ends."""
    model, images = work.setup.method.model(work.setup.task), torch.from_numpy(np.load(work.images, mmap_mode="c"))
    cohort = LocalCohort(dataclasses.replace(work.setup, model=model, images=images))
    received_round, received = 0, State()
    while True:
        order = json.loads(orders.get())
        round_, client = order["round"], order["client"]
        if order["state_round"] is not None:
            work.setup.states.rounds[client] = order["state_round"]
        try:
            if received_round != round_:
                received_round, [received] = round_, read_states(work.received_path(round_))
            with explain_memory_errors(work.setup.labels.device):
                upload, own = cohort.train(round_, client, received)
            write_states(work.result_path(client), upload.state, own)
            reply(replies, client=client, n=upload.n, losses=upload.losses, seconds=upload.seconds)
        except FedBMError as error:
            reply(replies, error="user", message=str(error))
        except Exception:  # a mistake in a method: its author needs the traceback
            reply(replies, error="bug", message=f"in a client process:\n{traceback.format_exc()}")


def reply(replies: IO[str], **values: Any) -> None:
    """Write one line to the parent process."""
    with suppress(BrokenPipeError):  # the parent has ended, and read_orders() ends this process
        replies.write(json.dumps(values) + "\n")
        replies.flush()
