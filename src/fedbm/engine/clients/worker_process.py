"""The main function of a client process: it receives orders, trains clients, and sends their results.

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
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.device import explain_memory_errors, numeric_settings
from fedbm.errors import FedBMError
from fedbm.methods.base import State, Upload


def main(pipe: Connection, pickled_work: bytes, folder: Path) -> None:
    """Serve the parent process until it ends, then remove its temporary *folder*."""
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has ended
        serve(pipe, pickled_work)


def _end_with_parent(folder: Path) -> None:
    """End this process when its parent has ended, even within a step."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def serve(pipe: Connection, pickled_work: bytes) -> None:
    """Train one client per order, until the parent closes the pipe."""
    try:
        setup, engine, stored = pickle.loads(pickled_work)  # safe: it comes from the parent process, through its pipe
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
            received = changed or received
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
