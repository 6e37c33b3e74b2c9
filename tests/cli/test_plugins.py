"""Plug-ins: methods and readers of other packages are found by name, and a bad one disturbs nobody."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import Command, flags, one_sentence
from installing import forget_plugins, on_the_path, write_package
from pages import DOCS, blocks_of, section_of, text_of

import fedbm as package
from fedbm.methods import METHODS, all_methods
from fedbm.runs.plan import make_plan
from fedbm.runs.prediction import load_model
from fedbm.runs.run_config import make_config, to_sections

PAGE = DOCS / "your-method.md"
ODD = """
import dataclasses
from typing import ClassVar
import torch
import fedbm
from fedbm.config.options import option
from odd_fl.factor import FACTOR

@dataclasses.dataclass(frozen=True)
class Odd(fedbm.FedAvg):
    "Scale every loss."

    name: ClassVar[str] = "odd"
    scale: float = option(0.5, "factor on every loss", above=0)

    def loss(self, model, batch, context):
        return {name: FACTOR * self.scale * value for name, value in super().loss(model, batch, context).items()}

class NoMethod:
    pass

@dataclasses.dataclass(frozen=True)
class Undeclared(fedbm.FedAvg):
    name: ClassVar[str] = "undeclared"
    scale: float = 0.5

class Flat(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, int(3 * FACTOR), 5, stride=4)

    def forward(self, images):
        return self.conv(images).relu().mean(dim=(2, 3))

def read(path):
    raise KeyError(path.name)

def read_nothing(path):
    return None
"""
FILES = {"odd_fl/__init__.py": ODD, "odd_fl/factor.py": "FACTOR = 2.0\n"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """An empty folder of installed packages."""
    (tmp_path / "site").mkdir()
    with on_the_path(tmp_path / "site"):
        yield tmp_path / "site"


@pytest.fixture
def odd(site: Path) -> Path:
    write_package(site, "odd-fl", FILES, {"fedbm.methods": {"odd": "odd_fl:Odd"}})
    forget_plugins()
    return site


def test_the_package_of_the_page_works_by_name(
    fedbm: Command, site: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules and entry points are those that the page prints."""
    monkeypatch.chdir(tmp_path)
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text_of(PAGE), re.MULTILINE | re.DOTALL))
    [toml] = blocks_of(PAGE, "text")
    project = tomllib.loads(toml)["project"]
    modules = tomllib.loads(toml)["tool"]["setuptools"]["py-modules"]
    named = {f"{module}.py": files[f"{module}.py"] for module in modules}
    write_package(site, project["name"], named, project["entry-points"], project["version"])
    forget_plugins()
    rng = np.random.default_rng(0)
    (tmp_path / "scans").mkdir()
    np.save("scans/images.npy", rng.integers(0, 256, (60, 16, 16), dtype=np.uint8))
    np.save("scans/labels.npy", np.resize(["cyst", "polyp"], 60))

    command = re.search(r"^fedbm run (.*)$", section_of(PAGE, "A package with your method"), re.MULTILINE)
    assert command
    less = flags({key: value for key, value in tiny.items() if key not in ("data", "method", "clients")})
    status, out, err = fedbm("run", *command[1].split(), *less, "--clients", 2, "--fedavgm-momentum", 0.5)
    assert (status, err) == (0, "")
    assert "fedavgm · momentum=0.5" in out
    [run] = Path("runs").iterdir()
    assert run.name.startswith("fedavgm-scans-s0-")
    assert json.loads((run / "environment.json").read_text())["method"] == "fedbm-fedavgm 0.1"
    assert "this run is finished" in fedbm("run", run / "config.toml")[1]
    status, out, err = fedbm("methods")
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["fedavgm", "fedbm-fedavgm", "0.1"] in [line[:3] for line in lines]
    assert ["npy", "fedbm-fedavgm", "0.1"] in [line[:3] for line in lines]


def test_a_plug_in_in_every_command(
    fedbm: Command, odd: Path, tiny: dict[str, Any], tmp_path: Path, scans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(all_methods()) == [*METHODS, "odd"]
    settings = flags({**{key: value for key, value in tiny.items() if key != "method"}, "rounds": 1})
    status, _, err = fedbm("compare", "--methods", "fedavg,odd", "--scale", 0.25, "--seeds", 1, *settings)
    assert (status, err) == (0, "")
    [run] = Path("runs").glob("odd-*")
    assert "scale = 0.25" in (run / "config.toml").read_text()
    assert "[own]" not in (run / "config.toml").read_text()
    image = next(scans.rglob("*.png"))
    assert fedbm("predict", run, image)[0] == 0
    assert load_model(run, "cpu").method.scale == 0.25
    assert fedbm("config", "--toml", "--method", "odd")[1].count("scale = 0.5") == 1
    Path("grid.toml").write_text(
        f'title = "t"\nmethods = ["odd"]\nseeds = "1"\n[all]\ndata = "{scans}"\nsize = 16\nchannels = 1\nrounds = 1\n'
    )
    assert fedbm("sweep", "grid.toml", "--plan")[0] == 0
    for words in (["report"], ["list"], ["show", run]):
        assert fedbm(*words)[0] == 0, words
    status, _, err = fedbm("run", "--method", "odd", "--scale", -1)
    assert one_sentence(err) == "scale must be above 0 for odd, not -1"
    status, _, err = fedbm("run", "--method", "ood")
    assert one_sentence(err).startswith('there is no method "ood" (did you mean "odd"?); choose ')


def test_without_the_package_its_runs_are_named(
    fedbm: Command, odd: Path, tiny: dict[str, Any], tmp_path: Path, scans: Path
) -> None:
    settings = flags({**tiny, "method": "odd", "rounds": 1})
    assert fedbm("run", *settings, "--out", tmp_path / "runs")[0] == 0
    [run] = (tmp_path / "runs").iterdir()
    (odd / "odd_fl-0.1.dist-info" / "entry_points.txt").unlink()
    forget_plugins()
    status, _, err = fedbm("predict", run, next(scans.rglob("*.png")))
    assert status == 2
    assert one_sentence(err).startswith(f'{run}: there is no method "odd"')
    assert fedbm("list", tmp_path / "runs")[0] == 0


def test_the_run_id_covers_every_file_of_the_package(odd: Path, tiny: dict[str, Any]) -> None:
    config = make_config(to_sections({**tiny, "method": "odd"}))
    first = make_plan(config).id
    assert make_plan(config).id == first
    in_python = make_config(to_sections({key: value for key, value in tiny.items() if key != "method"}))
    by_object = make_plan(package.runs.run_config.with_method(in_python, all_methods()["odd"]()))
    assert by_object.id == first
    (odd / "odd_fl" / "factor.py").write_text("FACTOR = 3.0\n")
    assert make_plan(config).id != first


@pytest.mark.parametrize(("kind", "group", "name"), [("method", "methods", "Odd"), ("body", "bodies", "Flat")])
def test_predict_refuses_a_plug_in_that_changed_since_the_run(
    fedbm: Command, site: Path, tiny: dict[str, Any], tmp_path: Path, scans: Path, kind: str, group: str, name: str
) -> None:
    write_package(site, "odd-fl", FILES, {f"fedbm.{group}": {name.lower(): f"odd_fl:{name}"}})
    forget_plugins()
    settings = {key: value for key, value in tiny.items() if key != "width"}  # an option of ResNet-18 alone
    settings |= {kind: name.lower(), "rounds": 1}
    assert fedbm("run", *flags(settings), "--out", tmp_path / "runs")[0] == 0
    [run] = (tmp_path / "runs").iterdir()
    image = next(scans.rglob("*.png"))
    assert fedbm("predict", run, image)[0] == 0
    assert fedbm("features", run)[0] == 0
    (site / "odd_fl" / "factor.py").write_text("FACTOR = 3.0\n")
    for command in (["predict", run, image], ["features", run]):
        status, _, err = fedbm(*command)
        assert status == 2
        assert one_sentence(err) == (
            f"{run} was trained by another version of an installed plug-in: install that version, or train again"
        )


@pytest.mark.parametrize(
    ("entries", "name", "sentence"),
    [
        (
            {"fedavg": "odd_fl:Odd"},
            None,
            'the plug-in "fedavg" of bad-fl 0.1 cannot be used: its name is one of',
        ),
        ({"Luna": "odd_fl:Odd"}, "Luna", 'the plug-in "Luna" of bad-fl 0.1 cannot be used: its name must start'),
        ({"luna": "odd_fl:Odd"}, "luna", '"luna" of bad-fl 0.1 cannot be used: it must be a dataclass, a subclass'),
        (
            {"luna": "odd_fl:NoMethod"},
            "luna",
            'a subclass of fedbm.FedAvg, with name = "luna" and fields made by',
        ),
        (
            {"undeclared": "odd_fl:Undeclared"},
            "undeclared",
            'with name = "undeclared" and fields made by option().',
        ),
        ({"luna": "odd_fl:Luna"}, "luna", "bad-fl 0.1 cannot be used: AttributeError: module 'odd_fl' has no"),
        ({"luna": "no_such:Luna"}, "luna", "cannot be used: ModuleNotFoundError: No module named 'no_such'."),
        ({"odd": "odd_fl:Odd"}, "odd", "of bad-fl 0.1 and odd-fl 0.1 cannot be used: more than one package"),
    ],
)
def test_a_bad_plug_in_is_named_and_disturbs_nobody(
    fedbm: Command, odd: Path, tiny: dict[str, Any], tmp_path: Path, entries: dict[str, str], name: str, sentence: str
) -> None:
    write_package(odd, "bad-fl", {}, {"fedbm.methods": entries})
    forget_plugins()
    status, out, err = fedbm("methods", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    [problem] = found["problems"]
    assert sentence in problem
    assert {one["name"] for one in found["methods"]} >= {*METHODS} | ({"odd"} if name != "odd" else set())
    assert sentence in " ".join(fedbm("methods")[1].split())
    if name is not None:
        status, _, err = fedbm("run", "--method", name)
        assert status == 2
        assert sentence in one_sentence(err)
    settings = flags({**tiny, "rounds": 1})
    assert fedbm("run", *settings, "--out", tmp_path / "runs")[0] == 0


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("nyp:scans", 'there is no reader "nyp" for nyp:scans; installed are: bad, none, odd'),
        ("none:scans", 'the reader "none" of odd-fl 0.1 must return a Source, not NoneType'),
        ("bad:scans", 'the plug-in "bad" of odd-fl 0.1 cannot be used: it is not a function. Correct or uninstall it.'),
    ],
)
def test_readers_that_fail(fedbm: Command, site: Path, data: str, sentence: str) -> None:
    readers = {"odd": "odd_fl:read", "none": "odd_fl:read_nothing", "bad": "odd_fl.factor:FACTOR"}
    write_package(site, "odd-fl", FILES, {"fedbm.readers": readers})
    forget_plugins()
    status, _, err = fedbm("data", "prepare", data)
    assert status == 2
    assert one_sentence(err) == sentence


def test_a_body_by_name(fedbm: Command, site: Path, tiny: dict[str, Any], tmp_path: Path, scans: Path) -> None:
    write_package(site, "odd-fl", FILES, {"fedbm.bodies": {"flat": "odd_fl:Flat", "bad": "odd_fl.factor:FACTOR"}})
    forget_plugins()
    own = {key: value for key, value in tiny.items() if key != "width"}
    status, _, err = fedbm(
        "run", *flags({**own, "rounds": 1, "body": "flat", "workers": 2}), "--out", tmp_path / "runs"
    )
    assert (status, err) == (0, "")
    [run] = (tmp_path / "runs").iterdir()
    assert "this run is finished" in fedbm("run", run / "config.toml")[1]
    assert fedbm("predict", run, next(scans.rglob("*.png")))[0] == 0
    config = make_config(to_sections({**own, "body": "flat"}))
    first = make_plan(config).id
    (site / "odd_fl" / "factor.py").write_text("FACTOR = 3.0\n")
    assert make_plan(config).id != first
    found = json.loads(fedbm("methods", "--json")[1])
    assert [one["name"] for one in found["bodies"]] == ["flat"]
    [problem] = found["problems"]
    assert problem == 'the plug-in "bad" of odd-fl 0.1 cannot be used: it is not a function. Correct or uninstall it.'
    status, _, err = fedbm("run", *flags({**own, "body": "bad"}))
    assert one_sentence(err) == problem
    status, _, err = fedbm("run", *flags({**own, "body": "flut"}))
    assert one_sentence(err).startswith(
        'there is no body "flut" (did you mean "flat"?); use resnet18, bad, flat, or timm'
    )


def test_the_list_without_plug_ins(fedbm: Command) -> None:
    status, out, err = fedbm("methods", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert [one["name"] for one in found["methods"]] == list(METHODS)
    assert all(one["meaning"] for one in found["methods"])
    assert (found["bodies"], found["readers"], found["problems"]) == ([], [], [])
    fedprox = next(one for one in found["methods"] if one["name"] == "fedprox")
    assert fedprox["options"] == ["weighting", "mu"]
    assert "fedprox" in fedbm("methods")[1]
