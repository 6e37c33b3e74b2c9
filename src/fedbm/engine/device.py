"""Where a run is computed, and with how many threads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedbm.errors import FedBMError
from fedbm.options import EngineOptions


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
