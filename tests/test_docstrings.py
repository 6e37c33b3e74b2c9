"""The examples in docstrings are run, so that they stay true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import fedbm

PACKAGE = Path(fedbm.__file__).parent
MODULES = [
    ".".join(("fedbm", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted, "it has none that doctest finds"
    assert not found.failed
