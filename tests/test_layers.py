"""Imports point one way: a package imports packages of lower layers only."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fedbm"
LAYERS = (
    {"utils"},
    {"config"},
    {"data", "language", "models"},
    {"methods"},
    {"engine"},
    {"runs"},
    {"experiments"},
    {"report", "federation"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
DRAWING = "fedbm.report.figures"  # draws the partition and generated images of a run, and a partition in a notebook


@functools.cache
def imports() -> list[tuple[str, str, str]]:
    """Return (file, its package, imported module) for every import between packages of fedbm."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if len(place.parts) == 1:
            continue
        found += [
            (str(place), place.parts[0], node.module or "")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedbm.")
        ]
    return found


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(LEVEL)


@pytest.mark.parametrize("package", sorted(LEVEL))
def test_a_package_imports_lower_layers_only(package: str) -> None:
    upwards = [
        f"{file} imports {module}"
        for file, own, module in imports()
        if own == package and (other := module.split(".")[1]) in LEVEL
        if other != own and LEVEL[other] >= LEVEL[own]
        if not (own in ("runs", "data") and module.startswith(DRAWING))
    ]
    siblings = {"language": "data.catalog"}  # concepts belong to the classes of the catalogue
    assert [line for line in upwards if f"fedbm.{siblings.get(package)}." not in line] == []


def test_file_names_are_unique() -> None:
    names = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))
