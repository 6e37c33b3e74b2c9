"""fedbm doctor: check Python, PyTorch, CUDA, extras, cache and disk, and print what to do.

examples:
  fedbm doctor                                                exit status 0 if the core works, otherwise 2
  fedbm doctor --json
A missing GPU or extra is a note: the core works without it.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from rich.console import Console

from fedbm.cli.flags import add_json
from fedbm.cli.output import print_json
from fedbm.errors import FedBMError
from fedbm.version import __version__

NOT_CHECKED = ("all", "dev", "docs")  # extras of other extras, and of maintainers
MIN_FREE_BYTES = 2_000_000_000  # 10,000 prepared images of 256 × 256 pixels in colour


class Finding(NamedTuple):
    """What a check found; *state* is ok, note or problem."""

    check: str
    state: str
    found: str
    advice: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def execute(args: argparse.Namespace, console: Console) -> None:
    own = [Finding("fedbm", "ok", __version__), Finding("Python", "ok", platform.python_version())]
    findings = [*own, *check_packages(), *check_torch(), *check_cache()]
    for one in findings:
        console.print(f"{one.state:8} {one.check}: {one.found}{f'. {one.advice}' if one.advice else ''}")
    problems = [one.check for one in findings if one.state == "problem"]
    if args.json:
        print_json({"works": not problems, "findings": [one._asdict() for one in findings]})
    if problems:
        raise FedBMError(f"the core does not work: {', '.join(problems)}. 'fedbm doctor' shows what to do.")
    console.print("The core works.")


def check_packages() -> Iterator[Finding]:
    """Compare the installed packages with those that fedbm requires: the core's, then each extra's."""
    try:
        from packaging.requirements import Requirement

        required = [Requirement(text) for text in metadata.requires("fedbm") or []]
    except ImportError as error:  # PackageNotFoundError is one, too
        yield Finding("packages", "problem", str(error), "Run: pip install fedbm")
        return
    for extra in ("", *metadata.metadata("fedbm").get_all("Provides-Extra", [])):
        if extra in NOT_CHECKED:
            continue
        own = [one for one in required if (one.marker.evaluate({"extra": extra}) if one.marker else not extra)]
        found = {one: _version(one.name) for one in own}
        faults = [
            f"{one.name}{one.specifier} (found: {version or 'nothing'})"
            for one, version in found.items()
            if not version or not one.specifier.contains(version, prereleases=True)
        ]
        check, package = (f"extra {extra}", f"'fedbm[{extra}]'") if extra else ("packages", "fedbm")
        if faults:
            yield Finding(check, "note" if extra else "problem", ", ".join(faults), f"Run: pip install {package}")
        else:
            yield Finding(check, "ok", ", ".join(f"{one.name} {version}" for one, version in found.items()))


def check_torch() -> Iterator[Finding]:
    """Import PyTorch, compute something with it, and look for GPUs."""
    try:
        import torch

        torch.ones(2, 2) @ torch.ones(2, 2)
    except Exception as error:  # its libraries may raise any error
        yield Finding("PyTorch", "problem", f"cannot be used: {error}", "Run: pip install --force-reinstall torch")
        return
    yield Finding("PyTorch", "ok", str(torch.__version__))
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("CUDA", "ok", f"{torch.version.cuda}, {', '.join(names)}")
    else:
        advice = "To use a GPU, install PyTorch for CUDA; 'nvidia-smi' shows whether the driver works"
        yield Finding("CUDA", "note", "PyTorch finds no GPU", advice)


def check_cache() -> Iterator[Finding]:
    """Write to the folder of prepared data sets, and look at the free space there."""
    try:
        from fedbm.data.dataset import default_cache
        from fedbm.utils.io import make_folder

        make_folder(folder := default_cache())
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except (FedBMError, ImportError, OSError) as error:
        yield Finding("cache", "problem", str(error), "Set FEDBM_HOME to a folder that you can write to")
        return
    yield Finding("cache", "ok", str(folder))
    state = "note" if free < MIN_FREE_BYTES else "ok"
    yield Finding("disk", state, f"{free / 1e9:.1f} GB free; FEDBM_HOME can name a folder on another disk")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
