"""Install a small package in a folder, as pip would, and forget it again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedbm import methods
from fedbm.data.readers import dispatch
from fedbm.models import backbone
from fedbm.runs import run_config


def forget_plugins() -> None:
    """Let the package look for plug-ins and their options again."""
    for cached in (methods.method_plugins, dispatch.reader_plugins, run_config.keys):
        cached.cache_clear()
    backbone.body_plugins.cache_clear()


def write_package(
    folder: Path, name: str, files: Mapping[str, str], entries: Mapping[str, Mapping[str, str]], version: str = "0.1"
) -> None:
    """Write modules and the metadata of an installed distribution; *entries* are {group: {name: object}}."""
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = [
        line for group, pairs in entries.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in pairs.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextmanager
def on_the_path(folder: Path) -> Iterator[None]:
    """Make the packages of a folder importable, here and in processes that are started."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        importlib.invalidate_caches()
        forget_plugins()
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
    importlib.invalidate_caches()
    forget_plugins()
