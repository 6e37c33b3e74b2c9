"""environment.json: the versions and the machine of a run, and a digest of its settings.

The digest shows whether config.toml was edited later.
"""

from __future__ import annotations

import functools
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fedbm.utils.fingerprint import package_digest
from fedbm.utils.io import digest_of
from fedbm.version import __version__

PATH_OPTIONS = {  # the run id covers the contents of these files, not their paths
    "data": ("name", "metadata", "partition_file"),
    "language": ("encoder_dir", "concept_file"),
    "model": ("init_weights",),
}
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "Pillow", "safetensors")


def settings_digest(config: Mapping[str, Any]) -> str:
    """Return a digest of all settings but [engine] and PATH_OPTIONS; "" if JSON cannot represent a value."""
    kept = {
        section: {key: value for key, value in pairs.items() if key not in PATH_OPTIONS.get(section, ())}
        for section, pairs in config.items()
        if section != "engine"
    }
    try:
        return digest_of(kept)
    except (TypeError, ValueError):  # a date, infinity
        return ""


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, machine, threads, time and command, but no user name and no host name.

    "source" is a digest of this package's code: between two releases, the version does not identify it.
    """
    program = os.path.basename(sys.argv[0])
    return {
        "format": 1,
        "fedbm": __version__,
        "source": _source_digest(),
        "python": platform.python_version(),
        **{name.lower(): package_version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "command": shlex.join(["fedbm" if program == "__main__.py" else program, *sys.argv[1:]]),  # python -m fedbm
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def package_version(package: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed. It is read from disk once."""
    try:
        return version(package)
    except PackageNotFoundError:  # a replacement such as pillow-simd
        return None


@functools.cache
def _source_digest() -> str:
    return package_digest(_source_digest)[:12]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
