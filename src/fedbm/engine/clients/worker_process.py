"""A client process: told line by line which client to train, it answers line by line; tensors lie in shared files.

    standard input    the pickled Work, then {"round": 3, "client": 7, "since": 2} …
    standard output   {"client": 7, "n": 40, "losses": {…}, "seconds": 1.2}, its tensors in the shared folder
                      {"failed": a sentence}, {"broken": a traceback}, or {"cannot": why Work could not be read}

`since` is the round in which the client's state was last written to the run's folder. When standard input ends, the
parent is done or was killed: the process removes the shared folder and leaves at once.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import queue
import shutil
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedbm.config.options import EngineOptions, TrainOptions
from fedbm.engine.checkpoint import ClientStates, Progress
from fedbm.engine.clients.base import LocalCohort, LocalSetup
from fedbm.engine.device import explain_memory_errors, numeric_settings
from fedbm.errors import FedBMError
from fedbm.methods.base import Method, State, Task, Upload


@dataclass(frozen=True)
class MappedArray:
    """Where an array lies in a file, so that processes can share its memory."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def open(self) -> NDArray[Any]:
        return np.memmap(self.path, np.dtype(self.dtype), "c", self.offset, self.shape)


def mapped(array: NDArray[np.uint8], spare: Path) -> MappedArray:
    """Where *array* lies on disk; what lies in memory alone, or was changed there, is written to *spare*."""
    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.flags.c_contiguous:
        found = MappedArray(str(array.filename), array.dtype.str, array.shape, array.offset)
        there = found.open()
        if all(np.array_equal(array[i : i + 256], there[i : i + 256]) for i in range(0, len(array), 256)):
            return found
    np.save(spare, array, allow_pickle=False)
    return mapped(np.load(spare, mmap_mode="c"), spare)


@dataclass(frozen=True)
class Work:
    """What a client process must know before the first round."""

    method: Method
    task: Task
    train: TrainOptions
    engine: EngineOptions
    images: MappedArray
    labels: torch.Tensor
    clients: tuple[torch.Tensor, ...]
    states: ClientStates
    shared: Path

    def received(self, round_: int) -> Path:
        return self.shared / f"received-{round_}.safetensors"

    def upload(self, client: int) -> Path:
        return self.shared / f"upload-{client}.safetensors"

    def own(self, client: int) -> Path:
        return self.shared / f"own-{client}.safetensors"


def hand_over(path: Path, state: State) -> None:
    """Write *state* for another process; not flushed, for it need not outlast this run."""
    numbered = {str(number): value.detach().cpu().contiguous().clone() for number, value in enumerate(state.values())}
    try:
        save_file(numbered, path, {"names": json.dumps(list(state))})
    except (OSError, SafetensorError) as error:
        raise FedBMError(f"cannot write {path}: {error}; free some space or set TMPDIR to another folder") from error


def take_over(path: Path) -> State:
    """What hand_over() wrote: names in their order, values in this process's own memory."""
    with safe_open(path, framework="pt") as file:
        names = json.loads(file.metadata()["names"])
        return {name: file.get_tensor(str(number)).clone() for number, name in enumerate(names)}


def collected(work: Work, answer: Mapping[str, Any]) -> tuple[Upload, State]:
    """What a process has left in the shared folder for this answer, removed from there."""
    client = answer["client"]
    states = []
    for path in (work.upload(client), work.own(client)):
        states.append(take_over(path))
        path.unlink()
    return Upload(client, answer["n"], states[0], answer["losses"], answer["seconds"]), states[1]


def main(pickled: bytes) -> None:
    """Serve whoever started this process; what a method prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work: Work = pickle.loads(pickled)  # from the process that started this one, by its own pipe; never from a file
    except Exception as error:  # whatever the modules of a user's objects do when they are imported
        say(answers, cannot=f"{type(error).__name__}: {error}")
        return
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(sys.stdin.buffer, lines, work.shared), daemon=True).start()
    with numeric_settings(work.engine, work.train.precision):
        serve(work, lines, answers)


def listen(orders: IO[bytes], lines: queue.SimpleQueue[bytes], shared: Path) -> None:
    for line in orders:
        lines.put(line)
    shutil.rmtree(shared, ignore_errors=True)
    os._exit(0)  # in the middle of a step, if need be


def serve(work: Work, lines: queue.SimpleQueue[bytes], answers: IO[str]) -> None:
    cohort = LocalCohort(
        LocalSetup(
            method=work.method,
            task=work.task,
            train=work.train,
            model=work.method.model(work.task),
            images=torch.from_numpy(work.images.open()),
            labels=work.labels,
            clients=work.clients,
            states=work.states,
            progress=Progress(),
        )
    )
    received: tuple[int, State] = (0, {})
    while True:
        order = json.loads(lines.get())
        round_, client = order["round"], order["client"]
        if order["since"] is not None:
            work.states.rounds[client] = order["since"]
        try:
            if received[0] != round_:
                received = round_, take_over(work.received(round_))
            with explain_memory_errors(work.labels.device):
                upload, own = cohort.train(round_, client, received[1])
            hand_over(work.upload(client), upload.state)
            hand_over(work.own(client), own)
            say(answers, client=client, n=upload.n, losses=upload.losses, seconds=upload.seconds)
        except FedBMError as error:
            say(answers, failed=str(error))
        except Exception:  # a mistake in a method: its traceback is what the author needs
            say(answers, broken=traceback.format_exc())


def say(answers: IO[str], **what: Any) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()
