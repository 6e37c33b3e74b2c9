"""fedbm doctor: check Python, PyTorch, CUDA, extras, cache and disk, and print what to do.

examples:
  fedbm doctor                                                exit status 0 if the core works, otherwise 2
  fedbm doctor --json
A missing GPU or extra is a note: the core works without it.
"""

from __future__ import annotations

import argparse
import platform
import re
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
    findings = list(check_all())
    for one in findings:
        console.print(f"{one.state:8} {one.check}: {one.found}{f'. {one.advice}' if one.advice else ''}")
    problems = [one.check for one in findings if one.state == "problem"]
    if args.json:
        print_json({"works": not problems, "findings": [one._asdict() for one in findings]})
    if problems:
        raise FedBMError(f"the core does not work: {', '.join(problems)}. 'fedbm doctor' shows what to do.")
    console.print("The core works.")


def check_all() -> Iterator[Finding]:
    """Yield every finding. The checks of PyTorch and the cache need the core's packages."""
    yield Finding("fedbm", "ok", __version__)
    core, *extras = check_packages()
    yield core
    if core.state == "ok":
        yield from check_torch()
        yield from check_cache()
    yield from extras


def check_packages() -> Iterator[Finding]:
    """Compare the installed packages with those that fedbm requires: first the core's, then each extra's."""
    from packaging.requirements import Requirement

    try:
        required = metadata.requires("fedbm") or []
    except metadata.PackageNotFoundError:
        yield Finding("packages", "problem", "fedbm is not installed", "Run: pip install fedbm")
        return
    python = Requirement(f"Python{metadata.metadata('fedbm')['Requires-Python']}")
    by_extra: dict[str, list[Requirement]] = {"": [python]}
    for one in map(Requirement, required):
        extra = re.search(r'extra == "(.+?)"', str(one.marker))
        by_extra.setdefault(extra[1] if extra else "", []).append(one)
    for name, requirements in by_extra.items():
        if name in NOT_CHECKED:
            continue
        found = {one: _version(one.name) for one in requirements}
        faults = [
            f"{one.name} is missing" if version is None else f"{one.name} is {version}, not {one.specifier}"
            for one, version in found.items()
            if version is None or not one.specifier.contains(version, prereleases=True)
        ]
        label, package = (f"extra {name}", f"'fedbm[{name}]'") if name else ("packages", "fedbm")
        if faults:
            yield Finding(label, "note" if name else "problem", ", ".join(faults), f"Run: pip install {package}")
        else:
            yield Finding(label, "ok", ", ".join(f"{one.name} {version}" for one, version in found.items()))


def check_torch() -> Iterator[Finding]:
    """Import PyTorch, compute something with it, and look for GPUs."""
    try:
        import torch

        torch.ones(2, 2) @ torch.ones(2, 2)
    except Exception as error:  # its libraries may raise any error
        yield Finding("PyTorch", "problem", f"cannot be used: {error}", "Run: pip install --force-reinstall torch")
        return
    yield Finding("PyTorch", "ok", str(torch.__version__))
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.cuda.is_available():
        yield Finding("CUDA", "ok", f"{torch.version.cuda}, {', '.join(names)}")
    elif torch.version.cuda:
        yield Finding("CUDA", "note", "no GPU is found", "'nvidia-smi' shows whether the driver works")
    else:
        yield Finding("CUDA", "note", "this PyTorch is for the CPU", "To use a GPU, install PyTorch for CUDA")


def check_cache() -> Iterator[Finding]:
    """Write to the folder of prepared data sets, and look at the free space there."""
    from fedbm.data.dataset import default_cache
    from fedbm.utils.io import make_folder

    folder = default_cache()
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except (FedBMError, OSError) as error:
        yield Finding("cache", "problem", str(error), "Set FEDBM_HOME to a folder that you can write to")
        return
    yield Finding("cache", "ok", str(folder))
    few = free < MIN_FREE_BYTES
    advice = "Free some space, or set FEDBM_HOME to a folder on another disk" if few else None
    yield Finding("disk", "note" if few else "ok", f"{free / 1e9:.1f} GB free in {folder}", advice)


def _version(package: str) -> str | None:
    if package == "Python":
        return platform.python_version()
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
