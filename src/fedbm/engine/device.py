"""The device of a run, its numeric settings and its memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fedbm.config.options import EngineOptions
from fedbm.errors import FedBMError
from fedbm.utils.metrics import Array

T = TypeVar("T")

STATE_CACHE_SHARE = 1 / 16  # largest share of a GPU's memory for the client states of one run
IMAGES_SHARE = 1 / 2  # largest share of a GPU's free memory for images; training needs the rest
POLL_SECONDS = 0.0002  # between two looks at a busy device


def find_device(name: str) -> torch.device:
    """Return the device with this name. Raise FedBMError if this machine does not have it."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,2})?", name):
        raise FedBMError(f'device must be cpu, cuda, cuda:N or auto, not "{name}"')
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0  # device_count() ignores an old driver
    if device.type == "cuda" and (device.index or 0) >= usable:
        raise FedBMError(f"there is no device {name}: CUDA devices that PyTorch can use here: {usable}")
    return device


@contextmanager
def numeric_settings(options: EngineOptions, precision: str) -> Iterator[None]:
    """Set threads, determinism and TF32 for this block, and restore them afterwards."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    if changed := options.deterministic and not deterministic:  # only then: each call imports the compiler
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if changed:
            torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32


def separate_stream(device: torch.device) -> torch.cuda.StreamContext | nullcontext[None]:
    """Return a context with a CUDA stream for one run, so that runs in this process do not wait for each other."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def wait_until_idle(device: torch.device) -> Iterator[None]:
    """Yield until all queued CUDA work has finished. Returns immediately on the CPU."""
    if device.type == "cuda":
        done = torch.cuda.current_stream(device).record_event()
        while not done.query():
            time.sleep(POLL_SECONDS)
            yield


def run_to_end(waiting: Generator[None, None, T]) -> T:
    """Return the result of a generator that yields while it waits."""
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            result: T = end.value
            return result


_SHARED: WeakValueDictionary[tuple[str, torch.device], Tensor] = WeakValueDictionary()


def share_on_device(array: Array, name: str, device: torch.device) -> Tensor:
    """Return *array* on the device. Runs of one process that use the same *name* share the tensor."""
    found = _SHARED.get((name, device))
    if found is None:
        found = _SHARED[name, device] = torch.from_numpy(array).to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # before another run reads it on its own stream
    return found


def place_images(array: Array, device: torch.device, data_on: str = "auto", name: str | None = None) -> Tensor:
    """Return images on the device, or in host memory if *data_on* is host or they take too much of a GPU's memory.

    Runs of one process that use the same *name* share them. Raise FedBMError if *data_on* is gpu, but not the device.
    """
    if data_on == "gpu" and device.type != "cuda":
        raise FedBMError(f"data_on = gpu needs a CUDA device, but the device is {device}; use data_on = auto")
    if device.type != "cuda" or data_on == "host":
        return torch.from_numpy(array)
    free = torch.cuda.mem_get_info(device)[0]
    if data_on == "auto" and (name, device) not in _SHARED and array.nbytes > free * IMAGES_SHARE:
        return torch.from_numpy(array)
    return torch.from_numpy(array).to(device) if name is None else share_on_device(array, name, device)


def gather_rows(array: Tensor, chosen: Tensor, pin: bool) -> Tensor:
    """Return array[chosen] of an array in host memory; if *pin*, in pinned memory, which a GPU copies in parallel."""
    found = torch.empty(*chosen.shape, *array.shape[1:], dtype=array.dtype, pin_memory=pin)
    # index_select copies row by row; array[chosen] copies byte by byte and is 30 times slower
    torch.index_select(array, 0, chosen.flatten(), out=found.flatten(0, chosen.dim() - 1))
    return found


def send_to(value: Tensor, device: torch.device) -> Tensor:
    """Return *value* on the device. The host does not wait for the copy."""
    return value if value.device == device else value.pin_memory().to(device, non_blocking=True)


def state_cache_bytes(device: torch.device) -> int:
    """Return how many bytes of client states to keep on the device; 0 on a CPU, where they are read from disk."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory * STATE_CACHE_SHARE)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return a context that computes in bf16 if *precision* is bf16. CUDA graphs cannot use the cache of autocast."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


@contextmanager
def explain_memory_errors(device: torch.device) -> Iterator[None]:
    """Raise FedBMError with advice if memory runs out or a batch is too small for BatchNorm."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise FedBMError(
                "BatchNorm cannot normalise one value: use a larger batch or size, or norm = group"
            ) from error
        raise
    except (MemoryError, RuntimeError) as error:  # PyTorch raises a plain RuntimeError on the CPU
        if isinstance(error, MemoryError) or re.search("out of memory|allocate memory|enough memory", str(error)):
            raise FedBMError(
                f"the memory of {device} is too small; try a smaller batch, width or size, or data_on = host on a GPU"
            ) from error
        raise
