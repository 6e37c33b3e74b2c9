"""fedbm list: the state of each run, and fewer columns if the terminal is narrow."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from calling import Command, one_sentence
from fake_runs import edit, fake_run
from rich.cells import cell_len
from rich.console import Console

from fedbm.cli.commands.list import COLUMNS, execute
from fedbm.cli.console_tables import partition_table
from fedbm.runs.failure import Failure, keep_failure

LABEL = "fedbm · lambda_dis=1.0, generator_every=1"


def lines_of(folder: Path, width: int) -> list[str]:
    """Return what a terminal of this width shows."""
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    execute(Namespace(settings={"out": str(folder)}, json=False), terminal)
    assert isinstance(terminal.file, io.StringIO)
    return [line.rstrip() for line in terminal.file.getvalue().splitlines()]


def test_only_a_folder_of_runs_is_listed(fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default folder may be missing, because the first run makes it."""
    monkeypatch.chdir(tmp_path)
    run = fake_run(tmp_path, "fedavg")
    for folder in (run / "config.toml", "typo"):
        status, out, err = fedbm("list", folder, "--json")
        assert (status, out, one_sentence(err)) == (2, "", f"there is no folder {folder}")
    for folder in ("runs", run):
        assert fedbm("list", folder)[1].startswith(f"There are no runs in {folder}. 'fedbm run' makes one, ")
    (tmp_path / "config.toml").touch()  # settings for the next run, next to the runs
    assert run.name in fedbm("list", tmp_path)[1]


def test_a_narrow_terminal_keeps_what_an_id_does_not_contain(tmp_path: Path) -> None:
    """A wider one adds the method's options and the start. No id is cut, so that it can be copied."""
    options = {"lambda_dis": 1.0, "generator_every": 1}
    for method, beta, more in (("fedbm", 0.05, options), ("fedavg", None, None)):
        run = fake_run(tmp_path, method, beta=beta, options=more, rounds=6)
        edit(run / "summary.json", id=f"{method}-digits-s0-c039073dbc5d")
    for width, heads in ((55, None), (80, ["run", "partition", "state", "rounds", "accuracy", "F1"]), (120, COLUMNS)):
        head, *lines = lines_of(tmp_path, width)
        assert max(map(cell_len, (head, *lines))) <= width
        for method in ("fedavg", "fedbm"):
            assert [line.split()[0] for line in lines].count(f"{method}-digits-s0-c039073dbc5d") == 1
        if heads is not None:
            assert head.split() == list(heads)
            assert len(lines) == 2 + (width == 120), "the method's options take a second line"
    assert LABEL in " ".join(lines_of(tmp_path, 150))


@pytest.mark.parametrize("width", [30, 45, 60])
def test_a_number_is_never_on_two_lines(width: int) -> None:
    """The rest of 2345 on a line of its own looks like another number. Where it has no room, "…" shows that."""
    *_, first, second, third = drawn([[1000 + place for place in range(10)]] * 3, list("abcdefghij"), width)
    assert [line.split()[0] for line in (first, second, third)] == ["0", "1", "2"]


def test_long_names_of_classes_leave_room_for_numbers() -> None:
    """In a terminal of 80 columns, names are on several lines, and clients and numbers are whole."""
    names = ["actinic keratoses", "basal cell carcinoma", "benign keratosis", "dermatofibroma", "vascular lesion"]
    *_, first, second = drawn([[1234] * 6, [56] * 6], [*names, "melanoma"], 80)
    assert first.split() == ["0", "7404", *["1234"] * 6]
    assert second.split() == ["1", "336", *["56"] * 6]


def drawn(counts: list[list[int]], classes: list[str], width: int) -> list[str]:
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    terminal.print(partition_table(np.array(counts), classes))
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue().splitlines()


def test_a_pipe_gets_everything(fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    options = {"temperature": 7.5, "generator_every": 1, "generator_steps": 3, "generator_width": 16}
    scores = {"accuracy": 0.5, "f1": 0.25}
    run = fake_run(tmp_path, "fedbm", seed=3, clients=7, rounds=4, beta=0.05, options=options, best=scores)
    edit(run / "summary.json", id="fedbm-digits-s3-c039073dbc5d")
    status, out, err = fedbm("list", "--out", tmp_path)
    assert (status, err) == (0, "")
    head, line = out.splitlines()
    assert tuple(head.split()) == COLUMNS
    label = "fedbm · temperature=7.5, generator_every=1, generator_steps=3, generator_width=16"
    when = f"{datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC).astimezone():%Y-%m-%d %H:%M}"
    cells = [label, "β 0.05", "finished", "4/4", "50.0 %", "25.0 %", when]
    assert " ".join(line.split()) == " ".join(["fedbm-digits-s3-c039073dbc5d", *cells])


def test_runs_that_are_not_finished(fedbm: Command, tmp_path: Path) -> None:
    """Unfinished, failed and unreadable runs have a line each; the reasons follow, each once."""
    half = fake_run(tmp_path, "fedavg", seed=0, rounds=6, done=2, beta=None, leave_out=["environment.json"])
    failed = [fake_run(tmp_path, "fedbm", seed=seed, data="pets", rounds=6, done=3) for seed in (0, 1)]
    for folder in failed:
        keep_failure(folder, Failure("round 4: the update of client 0 is not finite"))
    odd = fake_run(tmp_path, "fedprox", seed=0, rounds=6, done=1)
    (odd / "rounds.jsonl").write_text("{\n{}\n")
    status, out, err = fedbm("list", "--out", tmp_path)
    assert (status, err) == (0, "")
    _, *lines = out.splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines[:4]}
    assert found[half.name] == ["fedavg", "iid", "unfinished", "2/6", "–", "–", "–"]
    assert [found[folder.name][3:6] for folder in failed] == [["failed", "3/6", "–"]] * 2
    assert found[odd.name] == ["unreadable"]
    assert lines[4].startswith("unreadable: ")
    assert str(odd / "rounds.jsonl") in lines[4]
    assert lines[5] == f"failed: {failed[0].name} and 1 more: round 4: the update of client 0 is not finite"
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("data", "label"),
    [
        ("digits", "fedbm · temperature=7.5"),  # digits recommends a generator of width 32
        ("pets", "fedbm · temperature=7.5, generator_width=32"),
    ],
)
def test_an_unfinished_run_is_told_by_its_options(fedbm: Command, tmp_path: Path, data: str, label: str) -> None:
    fake_run(tmp_path, data=data, done=1, options={"temperature": 7.5, "generator_width": 32})
    assert f" {label}  β 0.05 " in fedbm("list", "--out", tmp_path)[1]


def test_a_method_of_another_version_is_told_by_its_name(fedbm: Command, tmp_path: Path) -> None:
    fake_run(tmp_path, done=1, options={"no_longer": 1})
    assert " fedbm   β 0.05 " in fedbm("list", "--out", tmp_path)[1]


def test_a_run_that_patience_ended(fedbm: Command, tmp_path: Path) -> None:
    run = fake_run(tmp_path, rounds=6)
    config = run / "config.toml"
    config.write_text(config.read_text(encoding="utf-8").replace("rounds = 6", "rounds = 9"), encoding="utf-8")
    assert " finished     6/9 " in fedbm("list", "--out", tmp_path)[1]


def test_all_rounds_and_no_result(fedbm: Command, tmp_path: Path) -> None:
    fake_run(tmp_path, rounds=6, done=6)
    (run,) = tmp_path.iterdir()
    (run / "summary.json").unlink(missing_ok=True)
    assert " unfinished     6/6 " in fedbm("list", "--out", tmp_path)[1]


@pytest.mark.parametrize(
    "environment", [{}, {"started": "yesterday"}, {"started": None}, {"started": "0001-01-01T00:00:00+10:00"}]
)
def test_when_a_run_started_is_not_on_record(fedbm: Command, tmp_path: Path, environment: dict[str, str]) -> None:
    run = fake_run(tmp_path, rounds=2)
    (run / "environment.json").write_text(json.dumps({"format": 1, **environment}))
    assert fedbm("list", "--out", tmp_path)[1].rstrip().endswith(" –")
    assert fedbm("show", run.name, "--out", tmp_path)[0] == 0  # the command is not on record either


@pytest.mark.parametrize(("kind", "beta", "words"), [("quantity", 0.5, "quantity β 0.5"), ("column", None, "column")])
def test_ways_of_dealing(fedbm: Command, tmp_path: Path, kind: str, beta: float | None, words: str) -> None:
    edit(fake_run(tmp_path, rounds=2) / "summary.json", partition=kind, beta=beta)
    assert f" fedbm   {words} " in fedbm("list", "--out", tmp_path)[1]
