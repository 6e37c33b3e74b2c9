"""`import fedbm`: its names come when they are asked for, and are what they were."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import fedbm
from fedbm import public
from fedbm.engine.round_loop import Event
from fedbm.engine.round_record import RoundRecord, Traffic
from fedbm.runs.progress_display import progress_console, show_runs


def test_import_is_light_until_a_name_is_asked_for() -> None:
    """With it come PyTorch and no tracker of experiments."""
    program = (
        "import sys, fedbm; assert 'torch' not in sys.modules; fedbm.load; fedbm.simulate; sys.modules['torch'];"
        "assert not {'wandb', 'mlflow', 'tensorboard'} & set(sys.modules)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_every_public_name() -> None:
    names = {name for name in vars(public) if not name.startswith("_")}
    for name in names:
        assert getattr(fedbm, name) is getattr(public, name)
    assert set(fedbm.__all__) == {"__version__", *names}
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


@pytest.fixture(scope="module")
def run(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> fedbm.RunView:
    return fedbm.simulate(**{**tiny, "rounds": 1, "out": tmp_path_factory.mktemp("work") / "runs"})


SPELLINGS: list[Callable[[fedbm.RunView], Any]] = [
    lambda run: run,
    lambda run: run.path,
    lambda run: str(run.path),
    lambda run: run.id,
    lambda run: run.id[:-4],
]


@pytest.mark.parametrize("spell", SPELLINGS)
def test_a_run_is_an_object_a_path_or_an_id(
    run: Any, spell: Callable[[Any], Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(run.path.parents[1])
    assert fedbm.load_model(spell(run), "cpu").classes == ("cyst", "normal", "polyp")
    for given in (spell(run), [spell(run)]):
        assert fedbm.write_report(given, tmp_path / "page.csv").read_text(encoding="utf-8").startswith("run,method,")
    assert fedbm.read_run(spell(run)).id == run.id


def test_the_ending_of_a_report_decides_its_format(run: Any, tmp_path: Path) -> None:
    starts = {".html": "<!DOCTYPE html>", ".md": "# ", ".tex": "%", ".csv": "run,"}
    for ending, start in starts.items():
        assert fedbm.write_report(run, tmp_path / f"page{ending}").read_text(encoding="utf-8").startswith(start)
    both = fedbm.write_report(run.path.parent, tmp_path / "all.csv").read_text(encoding="utf-8")  # a folder of runs
    assert run.id in both


def test_an_id_that_is_not_there(run: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(run.path.parents[1])
    for read in (fedbm.read_run, fedbm.load_model, fedbm.write_report):
        with pytest.raises(fedbm.FedBMError, match='there is no run "fedbm-x" in runs'):
            read("fedbm-x")


def words_in(picture: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


def test_objects_in_a_notebook(run: Any, tiny: dict[str, Any]) -> None:
    """One line as text, and a table or picture as HTML."""
    data = fedbm.load(tiny["data"], size=16, channels=1)
    assert repr(data) == "Dataset(scans: 90 images of (1, 16, 16), 3 classes, train 63, val 9, test 18)"
    assert "<tr><td>cyst</td><td>cyst</td><td>21</td><td>3</td><td>6</td></tr>" in data._repr_html_()
    parts = fedbm.by_classes(data, clients=3, classes_per_client=1, seed=0)
    assert repr(parts) == "Partition(classes: 3 clients with 21 samples)"
    assert words_in(parts._repr_html_()) == [
        *("class 0", "class 1", "class 2", "client", "total"),
        *(text for client in "012" for text in (client, "21")),
    ]
    assert words_in(fedbm.iid(data, clients=2, seed=0)._repr_html_())[3:] == ["0", "32", "1", "31"]
    many = fedbm.iid(data, clients=60, min_samples=1, seed=0)._repr_html_()
    assert ", the first 50</p>" in many
    assert words_in(many)[-2] == "49"
    accuracy = f"{100 * run.summary.best.accuracy:.1f}"
    assert repr(run) == f"Run({run.id}: fedavg on scans, finished, accuracy {accuracy} %)"
    assert f"<tr><td>best</td><td>1</td><td>{accuracy}</td>" in run._repr_html_()


def test_arrays_and_bodies_that_do_not_fit(tiny: dict[str, Any], tmp_path: Path) -> None:
    array: Any = np.zeros((4, 28, 28))
    for read in (fedbm.load, fedbm.simulate, fedbm.compare):
        with pytest.raises(fedbm.FedBMError, match=r"not ndarray: use fedbm\.from_arrays\(images, labels\)"):
            read(array)
    settings = {key: value for key, value in tiny.items() if key != "width"} | {"out": tmp_path}
    bodies: list[Callable[[], nn.Module]] = [
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()),
        lambda: fedbm.ResNet18(3, 4),  # declares its number of features
    ]
    for body in bodies:
        with pytest.raises(fedbm.FedBMError, match=r"cannot read images of shape \(1, 16, 16\) .*for 1 channels"):
            fedbm.simulate(body=body, **settings)


def test_progress_is_shown_on_request(tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal it is quiet unless asked."""
    settings = {**tiny, "rounds": 2, "out": tmp_path}
    fedbm.simulate(**settings)
    assert capsys.readouterr().out == ""
    fedbm.simulate(**{**settings, "seed": 1}, progress=True)
    shown = capsys.readouterr().out
    assert "fedavg round 2/2" in shown
    assert "note: each class of scans was split 7:1:2" in shown
    assert "--stem 3x3" in shown
    fedbm.simulate(**{**settings, "seed": 1}, progress=True)
    assert "this run is finished; nothing to compute" in capsys.readouterr().out
    del settings["method"]
    fedbm.compare(methods=["fedavg"], seeds=[2], progress=True, **settings)
    shown = capsys.readouterr().out
    assert "seed 2 round 2/2" in shown
    assert shown.count("was split 7:1:2") == 1


def test_progress_in_a_notebook_is_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []  # as a notebook has it at the end

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            shown[-1] = bundle["text/plain"]

    def display(bundle: dict[str, str], **_: Any) -> Handle:
        shown.append(bundle["text/plain"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with show_runs(Console(force_jupyter=True), {0: ("fedavg", 3)}) as show:
        for number in (1, 2, 3):
            values = {"clients": (), "dropped": (), "generator": None, "val": None, "test": None, "personal": None}
            values |= {"loss": {"cross_entropy": 1 / number}, "seconds": {"total": 2.0}}
            show(0, Event(number, "done", record=RoundRecord(round=number, bytes=Traffic(), **values)))
    assert shown == ["fedavg round 3/3  loss 0.333  2.0 s"]


def test_progress_is_shown_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress_console(None).quiet
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard output for a terminal
    assert progress_console(None).is_terminal
    assert not progress_console(None).quiet
    assert progress_console(False).quiet
    assert not progress_console(False).is_terminal
