"""--json: one document on standard output, with the keys that docs/scripting.md lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from calling import Command, one_sentence
from fake_runs import edit, fake_run
from pages import DOCS, rows_of, section_of

from fedbm.cli import federation_tasks
from fedbm.cli.commands import COMMANDS, data
from fedbm.federation.deploy.federation_folders import create
from fedbm.federation.server.run_status import StatusFile
from fedbm.runs.failure import Failure, keep_failure

PAGE = DOCS / "scripting.md"


def listed(heading: str) -> set[str]:
    """The keys in the first column of a section's table."""
    return {key for row in rows_of(section_of(PAGE, heading)) for key in re.findall(r"`(\w+)`", row[0])}


def named(start: str) -> set[str]:
    """The keys that the row of a command lists."""
    (row,) = [row for row in rows_of(section_of(PAGE, "JSON")) if row[0].startswith(f"`fedbm {start}")]
    return set(re.findall(r"`(\w+)`", row[1]))


def read(fedbm: Command, *words: Any) -> Any:
    status, out, err = fedbm(*words, "--json")
    assert (status, err) == (0, "")
    assert out.isascii()
    return json.loads(out)


def test_runs(fedbm: Command, tmp_path: Path) -> None:
    scores = {"accuracy": 0.5, "f1": 0.25}
    done = fake_run(tmp_path, "fedavg", seed=3, rounds=4, beta=0.05, best=scores)
    keep_failure(fake_run(tmp_path, "fedbm", rounds=6, done=3), Failure("round 4: not finite"))
    odd = fake_run(tmp_path, "fedprox", rounds=6, done=1)
    (odd / "rounds.jsonl").write_text("{\n{}\n")
    found = read(fedbm, "list", tmp_path)
    assert found == read(fedbm, "list", "--out", tmp_path)
    first, failed, unreadable = found
    assert first.keys() == failed.keys() == listed("A run")
    assert (first["state"], first["accuracy"], first["beta"], first["path"]) == ("finished", 0.5, 0.05, str(done))
    assert (failed["state"], failed["reason"], failed["rounds_done"]) == ("failed", "round 4: not finite", 3)
    assert unreadable.keys() == {"run", "path", "state", "reason"}
    shown = read(fedbm, "show", done.name, "--out", tmp_path)
    assert shown.keys() == listed("A run") | (named("show") - {"path", "bytes"}) | {"path"}
    assert shown["config"]["train"]["rounds"] == 4
    assert shown["summary"]["best"]["f1"] == 0.25
    edit(done / "environment.json", settings="0" * 64)
    assert read(fedbm, "list", tmp_path)[0]["edited"]


def test_no_runs_are_an_empty_list(fedbm: Command, tmp_path: Path) -> None:
    assert read(fedbm, "list", tmp_path) == []


def test_settings_and_catalogue(fedbm: Command) -> None:
    settings = read(fedbm, "config")
    assert all(one.keys() == named("config") for one in settings)
    assert {"--beta": None, "--rounds": None}.keys() <= {one["flag"] for one in settings}
    catalogue = read(fedbm, "data")
    assert catalogue == read(fedbm, "data", "list")
    assert all(one.keys() == named("data list") for one in catalogue)
    assert fedbm("config", "--json", "--toml")[0] == 2


def test_data_sets(fedbm: Command, scans: Path, tmp_path: Path) -> None:
    prepared = read(fedbm, "data", "prepare", scans, "--size", 16)
    assert prepared.keys() == listed("A data set") | named("data prepare")
    assert Path(prepared["path"]).is_dir()
    assert sum(map(sum, prepared["counts"].values())) == 90
    split = read(fedbm, "data", scans, "--size", 16, "--clients", 3)
    assert split.keys() == listed("A data set") | named("data partition")
    assert len(split["partition"]["clients"]) == 3
    seen = read(fedbm, "data", "inspect", scans, "--size", 16, "--to", tmp_path / "seen")
    files = seen.pop("files")
    assert seen == json.loads(Path(files[1]).read_text())


def test_plans(fedbm: Command, scans: Path, tmp_path: Path) -> None:
    assert all(one.keys() == {"name", "shows", "title"} for one in read(fedbm, "reproduce"))
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'title = "A grid"\n[all]\ndata = "{scans}"\nsize = 16\nrounds = 2\n[axes]\nbeta = [0.1, 0.5]\n'
        '[[rows]]\nname = "FedAvg"\nmethod = "fedavg"\n'
    )
    words = ("sweep", grid, "--seeds", 2, "--out", tmp_path / "runs", "--records", tmp_path / "records")
    plan = read(fedbm, *words, "--plan")
    assert plan.keys() == listed("A plan")
    assert [(one["at"]["beta"], one["seed"], one["state"]) for one in plan["runs"]] == [
        (beta, seed, "not run") for beta in (0.1, 0.5) for seed in (0, 1)
    ]
    row = next(row for row in rows_of(section_of(PAGE, "A plan")) if row[0] == "`runs`")
    assert plan["runs"][0].keys() == set(re.findall(r"`(\w+)`", row[1]))
    assert (plan["remaining"], plan["rounds"]) == (4, 8)
    status, out, err = fedbm(*words, "--json")
    assert (status, out) == (2, "")
    assert "Add --plan" in one_sentence(err)


def test_a_federation(fedbm: Command, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra flower")
    study = tmp_path / "study"
    server, *_ = create(study, 2)
    found = read(fedbm, "federation", "status", study)
    assert found["run"] is None
    assert [site["name"] for site in found["sites"]] == ["server", "hospital-1", "hospital-2"]
    cells = {row[0]: set(re.findall(r"`(\w+)`", row[1])) for row in rows_of(section_of(PAGE, "A federation"))}
    assert found["sites"][0].keys() == cells["`sites`"]
    StatusFile(server / "state" / "status.json", "some-run", 5).write(phase="train")
    run = read(fedbm, "federation", "status", study)["run"]
    assert run.keys() == cells["`run`"]
    assert (run["phase"], run["rounds_done"], run["seconds_remaining"]) == ("train", 0, None)
    assert run["remark"].startswith("No server app is running")


def test_the_page_lists_every_command_with_json(fedbm: Command) -> None:
    tasks = {"data": data.TASKS, "federation": federation_tasks.TASKS}
    commands = [(name, *task) for name in COMMANDS for task in (zip(tasks[name]) if name in tasks else [()])]
    found = {words for words in commands if "--json" in fedbm(*words, "--help")[1]}
    cells = " ".join(row[0] for row in rows_of(section_of(PAGE, "JSON")))
    assert found == {words for words in commands if f"`fedbm {' '.join(words)} " in cells}
