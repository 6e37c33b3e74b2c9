"""Choose the back end that trains the clients of a run on one machine.

LocalCohort       one client after the other, in this process
WorkerCohort      several processes on a CPU
CapturedCohort    CUDA graphs on one GPU
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedbm.config.options import EngineOptions
from fedbm.engine.clients.cohort import LocalSetup
from fedbm.engine.clients.cuda_graphs import CapturedCohort, CapturedSteps
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.clients.worker_cohort import WorkerCohort
from fedbm.engine.local_training import plain_steps
from fedbm.engine.round_loop import count_selected
from fedbm.errors import FedBMError
from fedbm.methods import METHODS
from fedbm.methods.base import Method, Steps, Task


class Backend(NamedTuple):
    cohort: LocalCohort
    steps: Steps  # of the server's own training
    memory_format: torch.memory_format  # of the images that the model reads


def uses_cuda_graphs(engine: EngineOptions, method: Method, device: torch.device) -> bool:
    """Return whether local training is captured as CUDA graphs: on CUDA, for the package's methods or if requested.

    Raise FedBMError if the options ask for what the device cannot do.
    """
    if engine.engine == "captured" and device.type != "cuda":
        raise FedBMError("engine = captured needs a CUDA device; use engine = reference or auto")
    is_known = METHODS.get(method.name) is type(method)
    captured = engine.engine == "captured" or (engine.engine == "auto" and is_known and device.type == "cuda")
    if engine.compile and not captured:
        raise FedBMError("compile needs the captured engine, on CUDA; torch.compile saves no time in the plain loop")
    return captured


def make_backend(
    setup: LocalSetup, engine: EngineOptions, stored: NDArray[np.uint8], notify: Callable[[str], None]
) -> Backend:
    """Return the fastest back end that applies. *stored* are the images on disk; *notify* gets notes for the user."""
    device = setup.labels.device
    if uses_cuda_graphs(engine, setup.method, device):
        setup.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        captured = CapturedCohort(setup, engine.slots, engine.compile, notify)
        steps = CapturedSteps(captured.free_memory, engine.compile, notify)
        return Backend(captured, steps, torch.channels_last)
    if device.type == "cuda" and engine.engine == "auto":
        notify(
            f"{setup.method.name} is not a method of this package, so its clients are trained in a plain loop; "
            "engine = captured tries CUDA graphs"
        )
    return Backend(_make_plain_cohort(setup, engine, stored, notify), plain_steps, torch.contiguous_format)


def _make_plain_cohort(
    setup: LocalSetup, engine: EngineOptions, stored: NDArray[np.uint8], notify: Callable[[str], None]
) -> LocalCohort:
    if (device := setup.labels.device).type != "cpu":
        if engine.workers > 1:
            raise FedBMError(f"workers only apply to the CPU, but the device is {device}; remove workers")
        return LocalCohort(setup)
    selected = count_selected(len(setup.clients), setup.train.participation)
    processes, threads = split_cores(engine.workers, selected)
    if processes == 1 or multiprocessing.current_process().daemon:  # those of a pool cannot start others
        return LocalCohort(setup)
    if not can_cross_processes(setup.method, setup.task):
        notify(
            "clients are trained in this process, because another process cannot load the method or body; define it in "
            "a module"
        )
        return LocalCohort(setup)
    return WorkerCohort(setup, dataclasses.replace(engine, threads=threads), stored, processes)


def split_cores(workers: int, selected: int) -> tuple[int, int]:
    """Return the number of processes, P = min(workers or cores, selected), and ⌊cores/P⌋ threads for each."""
    cores = torch.get_num_threads()
    processes = max(1, min(workers or cores, selected))
    return processes, max(1, cores // processes)


def can_cross_processes(method: Method, task: Task) -> bool:
    """Return whether another process can load these objects: none is a lambda or belongs to the running program."""
    try:
        return b"__main__" not in pickle.dumps((method, task))
    except Exception:  # a lambda, a local class and an open file each raise another type
        return False
