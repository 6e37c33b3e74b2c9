"""environment.json: with what a run was computed, for those who want to repeat or doubt it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fedbm.version import __version__

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "Pillow", "safetensors")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine, threads, time and the command. No user or host name, and no path but the command's own."""
    return {
        "format": 1,
        "fedbm": __version__,
        "python": platform.python_version(),
        **{name.lower(): _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "command": shlex.join([_program(), *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _program() -> str:
    name = os.path.basename(sys.argv[0])
    return "fedbm" if name == "__main__.py" else name  # python -m fedbm


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
