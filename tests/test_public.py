"""`import fedbm`: its names come when they are asked for, and are what they were."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedbm
from fedbm import public


def test_import_is_light_until_a_name_is_asked_for() -> None:
    program = "import sys, fedbm; assert 'torch' not in sys.modules; fedbm.load; sys.modules['torch']"
    environment = {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_every_public_name() -> None:
    for name in public.__all__:
        assert getattr(fedbm, name) is getattr(public, name)
    assert set(fedbm.__all__) == {"__version__", *public.__all__}
    assert dir(fedbm) == sorted(fedbm.__all__)
    starred: dict[str, object] = {}
    exec("from fedbm import *", starred)
    assert starred["simulate"] is fedbm.simulate


def test_no_module_has_a_public_name() -> None:
    """It would stand in the name's place once it is imported."""
    modules = {module.name for module in pkgutil.iter_modules(fedbm.__path__)}
    assert not modules & set(fedbm.__all__)


def test_what_stands_in_a_names_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedbm, "simulate", print)
    assert not hasattr(fedbm, "smulate")
    assert fedbm.simulate is print


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fedbm' has no attribute 'smulate'"):
        _ = fedbm.smulate
    with pytest.raises(ImportError, match="cannot import name 'smulate'"):
        from fedbm import smulate  # noqa: F401
    assert importlib.import_module("fedbm.runs.runner").simulate is fedbm.simulate
