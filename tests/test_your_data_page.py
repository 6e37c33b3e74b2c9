"""The page 'Your own data in five minutes', followed literally: its commands run in order, on images made here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from pages import DOCS, blocks_of, commands_of, runnable_of, section_of, text_of
from PIL import Image

from fedbm.cli import main

PAGE = DOCS / "your-data.md"
MODEL = Path(__file__).resolve().parents[1] / ".." / "shared" / "models" / "all-MiniLM-L6-v2"
CLASSES = ("melanoma", "nevus", "vascular_lesion")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An otherwise empty folder with scans/CLASS/*.jpg, and scans.csv that says whose they are: two patients a site."""
    root = tmp_path_factory.mktemp("page")
    rng, lines = np.random.default_rng(0), ["path,label,site,patient"]
    for name in CLASSES:
        (root / "scans" / name).mkdir(parents=True)
        shape = rng.integers(0, 160, (8, 8, 3))
        for number in range(20):
            picture = Image.fromarray((shape + rng.integers(0, 96, (8, 8, 3))).astype(np.uint8)).resize((48, 40))
            picture.save(root / "scans" / name / f"{number:04}.jpg")
            site = ("Oslo", "Bern", "Rom")[number % 3]
            lines.append(f"scans/{name}/{number:04}.jpg,{name},{site},{name[0]}{number // 2}")
    (root / "scans.csv").write_text("\n".join(lines), encoding="utf-8")
    return root


def type_in(block: str) -> None:
    commands = list(commands_of(block))
    assert len(commands) == sum(line.startswith("fedbm ") for line in block.splitlines())
    for words in commands:
        assert main(words) == 0, f"fedbm {' '.join(words)}"


def test_five_minutes(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    look, divide, train, sites, shift = (block for _, block in runnable_of(PAGE, "sh"))
    type_in(look)
    assert "scans: 60 images of (3, 32, 32)" in capsys.readouterr().out
    promised = re.findall(r"`(inspect-scans/[\w.]+)`", text_of(PAGE))
    assert sorted(promised) == sorted(str(path) for path in Path("inspect-scans").iterdir())
    type_in(divide)
    assert "4 clients (dirichlet)" in capsys.readouterr().out
    assert Path("clients.svg").exists()
    type_in(train)
    assert len(list(Path("runs").glob("*/summary.json"))) == 2
    assert Path("report.html").exists()
    type_in(sites)
    out = capsys.readouterr().out
    assert "3 clients (column)" in out
    assert "values of patient is in one subset" in out
    type_in(shift)
    assert "held out, never trained on:" in capsys.readouterr().out


@pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/models/all-MiniLM-L6-v2")
def test_class_names_read_by_a_language_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    Path("all-MiniLM-L6-v2").symlink_to(MODEL.resolve())
    type_in(next(block for block in blocks_of(PAGE, "sh") if block.startswith("fedbm concepts")))
    assert Path("scans-concepts.safetensors").exists()
    assert len(list(Path("runs").glob("fedbm-*/generated.png"))) == 1


def test_in_python(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    for block in blocks_of(PAGE, "python"):
        exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
    warnings, accuracy, data, is_same = capsys.readouterr().out.splitlines()
    assert "fewer than 5 val images" in warnings
    assert 0 <= float(accuracy) <= 1
    assert data == "Dataset(mine: 60 images of (3, 32, 32), 2 classes, train 42, val 6, test 12)"
    assert is_same == "True"


def test_the_table_of_partitions_names_them_all() -> None:
    from typing import get_args, get_type_hints

    from fedbm.config.options import DataOptions

    listed = re.findall(r"^\| `(\w+)` \|", section_of(PAGE, "Kinds of partition"), re.MULTILINE)
    kinds = list(get_args(get_type_hints(DataOptions)["partition"]))
    assert listed[: len(kinds)] == kinds  # the kinds of feature shift follow in a table of their own
