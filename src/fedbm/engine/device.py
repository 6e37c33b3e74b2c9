"""Where a run is computed, and with how many threads."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fedbm.config.options import EngineOptions
from fedbm.errors import FedBMError
from fedbm.utils.metrics import Array

HELD = 16  # a GPU's memory by this is what a run may fill with clients' states
IDLE = 0.0002  # seconds between looks at a device that is busy with all there is to do


def find_device(name: str) -> torch.device:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,2})?", name):
        raise FedBMError(f'device must be cpu, cuda, cuda:N or auto, not "{name}"')
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedBMError(f"device is {name}, but PyTorch sees no CUDA device here; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise FedBMError(f"there is no {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


@contextmanager
def arithmetic(options: EngineOptions, precision: str) -> Iterator[None]:
    """Threads, determinism and TF32 as asked for, and as they were afterwards."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for
    torch.use_deterministic_algorithms(options.deterministic or deterministic)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32


def own_stream(device: torch.device) -> torch.cuda.StreamContext | nullcontext[None]:
    """A stream for one run's work on the device, so that it does not wait for other runs' in this process."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def settled(device: torch.device) -> Iterator[None]:
    """Yield until the device has done all that this run gave it; where it works as it is told, not at all."""
    if device.type == "cuda":
        done = torch.cuda.current_stream(device).record_event()
        while not done.query():
            time.sleep(IDLE)
            yield


_PLACED: WeakValueDictionary[tuple[str, torch.device], Tensor] = WeakValueDictionary()


def placed_once(array: Array, name: str, device: torch.device) -> Tensor:
    """*array* on the device; runs of one process that name the same contents share it."""
    found = _PLACED.get((name, device))
    if found is None:
        found = _PLACED[name, device] = torch.from_numpy(array).to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # before another run reads it on its own stream
    return found


def room_for_states(device: torch.device) -> int:
    """Bytes of clients' states worth holding there: none on a CPU, whose client processes read them from disk."""
    return torch.cuda.get_device_properties(device).total_memory // HELD if device.type == "cuda" else 0


def computing(device: torch.device, precision: str) -> torch.autocast:
    """The precision of what runs inside: bf16 by autocast, or plain. (Captured graphs cannot use autocast's cache.)"""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


@contextmanager
def enough_memory(device: torch.device) -> Iterator[None]:
    """Running out of memory, or a batch too small to normalise, is what a user can mend: one sentence."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise FedBMError(
                "BatchNorm cannot normalise one value: use a larger batch or size, or norm = group"
            ) from error
        raise
    except (MemoryError, RuntimeError) as error:  # PyTorch's own is a RuntimeError, on the CPU a plain one
        if isinstance(error, MemoryError) or re.search("out of memory|allocate memory|enough memory", str(error)):
            raise FedBMError(f"the memory of {device} is too small; try a smaller batch, width or size") from error
        raise
