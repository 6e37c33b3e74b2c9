"""A run with an edited config.toml: its scores belong to other settings, and every command that shows them says so."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from calling import Command, flags, one_sentence

from fedbm.engine.environment import settings_digest

REMEDY = "was edited after the run began. Restore its settings, or remove its folder to start this run over."


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """A finished run of FedAvg, alone in its folder."""
    (found,) = runs.glob("fedavg-*")
    return Path(shutil.copytree(found, tmp_path / "runs" / found.name))


def edit(run: Path, pattern: str, line: str) -> None:
    path = run / "config.toml"
    text, count = re.subn(rf"^{pattern}$", line, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text, encoding="utf-8")


def test_a_digest_is_of_what_is_said_not_of_how() -> None:
    """By hand: SHA-256 of {"train":{"lr":0.01}}."""
    digest = "28c5bbcea010ddbeb58f364c48b775ecd8cccfc7faa610ecfa454987e8c798c3"
    assert settings_digest({"train": {"lr": 0.01}}) == digest
    assert settings_digest({"engine": {"slots": 3}, "train": {"lr": 0.01}}) == digest
    assert settings_digest({"model": {"init_weights": "a.pth"}, "train": {"lr": 0.01}}) != digest  # a section more
    moved = [settings_digest({"data": {"name": place, "clients": 3}}) for place in ("here", "there")]
    assert moved[0] == moved[1] != settings_digest({"data": {"name": "here", "clients": 4}})
    assert settings_digest({"train": {"lr": 0.02}}) != digest
    assert settings_digest({"train": {"lr": 0.01}, "own": {"code": "1f"}}) != digest


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("lr = .*", "lr = 0.5"),
        ("seed = .*", "seed = 7"),
        ("momentum = .*", ""),
        (r"\[engine\]", '[concepts]\n"cyst" = "a cyst"\n[engine]'),
    ],
)
def test_it_is_listed_as_edited_and_in_no_report(
    fedbm: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "was edited" not in fedbm("list")[1] + fedbm("show", run)[1]
    edit(run, pattern, line)
    status, out, err = fedbm("list")
    assert (status, err) == (0, "")
    assert " edited     4/4 " in out.splitlines()[1]
    assert out.splitlines()[2:] == [f"edited: {run.name}: config.toml {REMEDY}"]
    assert f"\nconfig.toml {REMEDY}\n" in fedbm("show", run)[1]
    commands = [["report", "--to", f"page{kind}"] for kind in (".html", ".md", ".tex", ".csv")]
    more = [["export", "--tensorboard", "events"], ["features", run.name]]
    more += [["predict", run.name, "x.png"]]
    for words in (*commands, *more):
        status, out, err = fedbm(*words)
        assert (status, out) == (2, "")
        assert one_sentence(err) == f"runs/{run.name}/config.toml {REMEDY}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert not (run / "features.json").exists()


def test_a_value_that_no_setting_can_have_is_one_sentence(fedbm: Command, run: Path) -> None:
    edit(run, "lr = .*", "lr = nan")
    status, out, err = fedbm("show", run, "--json")
    assert (status, out) == (2, "")
    assert one_sentence(err).endswith("config.toml: train.lr must be made of finite numbers and readable text, not nan")


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("slots = .*", "slots = 2"),
        ("seed = .*", "seed   = 0  # mine"),
        (r"\[engine\]", "[engine]\n"),
        ("partition_file = .*", 'partition_file = "moved/partition.json"'),
        (r"(\[data\]\nname) = .*", r'\1 = "moved/scans"'),
    ],
)
def test_what_says_the_same_is_not_edited(fedbm: Command, run: Path, pattern: str, line: str) -> None:
    edit(run, pattern, line)
    assert "edited" not in fedbm("list", "--out", run.parent)[1]
    assert fedbm("report", run, "--to", run / "page.md")[0] == 0


def test_runs_of_versions_that_kept_no_digest_are_taken_as_they_are(fedbm: Command, run: Path) -> None:
    path = run / "environment.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    assert len(known.pop("settings")) == 64
    path.write_text(json.dumps(known), encoding="utf-8")
    edit(run, "lr = .*", "lr = 0.5")
    assert "edited" not in fedbm("list", "--out", run.parent)[1]
    assert fedbm("report", run, "--to", run / "page.md")[0] == 0


@pytest.mark.parametrize("finished", [True, False])
def test_compare_says_so_before_it_plays_others(
    fedbm: Command, run: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """'run' refuses too: the remaining rounds would use other settings than the file shows."""
    monkeypatch.chdir(tmp_path)
    edit(run, "lr = .*", "lr = 0.5")
    if not finished:
        (run / "summary.json").unlink()
    status, _, err = fedbm("run", *flags({**tiny, "method": "fedavg"}))
    assert (status, one_sentence(err)) == (2, f"runs/{run.name}/config.toml {REMEDY}")
    shared = {key: value for key, value in tiny.items() if key != "method"}
    status, _, err = fedbm("compare", *flags(shared), "--methods", "fedavg,fedprox", "--seeds", 1)
    assert status == 2
    assert one_sentence(err) == f"runs/{run.name}/config.toml {REMEDY}"
    assert list(run.parent.glob("fedprox-*")) == []
