"""The examples in docstrings are run, so that they stay true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
from pages import DOCS, text_of

import fedbm

PACKAGE = Path(fedbm.__file__).parent
MODULES = [
    ".".join(("fedbm", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: examples with the same settings share a run."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted, "it has none that doctest finds"
    assert not found.failed


def test_files_that_the_code_mentions_exist() -> None:
    files = [str(path) for place in ("src", "tools") for path in (PACKAGE.parents[1] / place).rglob("*.py")]
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in re.findall(r"`([a-z_/]+\.py)`", path.read_text(encoding="utf-8")):
            assert any(file.endswith(f"/{name}") for file in files), f"{path.name} mentions {name}"


@pytest.mark.parametrize("name", fedbm.__all__)
def test_public_names_are_documented(name: str) -> None:
    """With an example; functions also with every argument and what they return."""
    assert re.search(rf"^\.\. [\w:]+:: fedbm\.{name}\b", text_of(DOCS / "api.md"), re.MULTILINE)
    thing = getattr(fedbm, name)
    if name in ("METHODS", "__version__"):  # data have no docstring of their own
        return
    text = inspect.getdoc(thing) or ""
    assert "Example:\n" in text
    if inspect.isfunction(thing):
        assert "Returns:\n" in text
        for argument in inspect.signature(thing).parameters:
            assert re.search(rf"^    {argument}: ", text, re.MULTILINE), argument
