"""fedbm list: one line per run at every terminal width, fewer columns if it is narrow, and the state of each run."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from calling import Command
from fake_runs import edit, fake_run
from rich.cells import cell_len
from rich.console import Console

from fedbm.cli.commands.list import BY_PRIORITY, SHOWN, execute, fit_table
from fedbm.runs.failure import Failure, keep_failure

OF_BOTH = ("12/50", "0", "64.1 %", "57.7 %", "2025-01-02 03:04")
LABEL = "fedbm · lambda_dis=1.0, generator_every=1"
LINES = [
    dict(zip(SHOWN, (*cells, *OF_BOTH), strict=True))
    for cells in (
        ("fedbm-digits-s0-c039073dbc5d", LABEL, "digits", "β 0.05", "10"),
        ("fedavg-digits-s1-7e4190a1007b", "fedavg", "digits", "iid", "10"),
    )
]


def shown(lines: list[dict[str, str]], width: int) -> list[str]:
    """What a terminal of this width is sent."""
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    terminal.print(fit_table(lines, width), soft_wrap=True)
    assert isinstance(terminal.file, io.StringIO)
    return [line.rstrip() for line in terminal.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            60,
            [
                "run                            partition  rounds  accuracy",
                "fedbm-digits-s0-c039073dbc5d   β 0.05      12/50    64.1 %",
                "fedavg-digits-s1-7e4190a1007b  iid         12/50    64.1 %",
            ],
        ),
        (
            80,
            [
                "run                            partition  clients  rounds  accuracy      F1",
                "fedbm-digits-s0-c039073dbc5d   β 0.05          10   12/50    64.1 %  57.7 %",
                "fedavg-digits-s1-7e4190a1007b  iid             10   12/50    64.1 %  57.7 %",
            ],
        ),
        (
            120,
            [
                "run                            method                     partition  clients  rounds  accuracy      F1"
                "           started",
                "fedbm-digits-s0-c039073dbc5d   fedbm · lambda_dis=1.0, …  β 0.05          10   12/50    64.1 %  57.7 %"
                "  2025-01-02 03:04",
                "fedavg-digits-s1-7e4190a1007b  fedavg                     iid             10   12/50    64.1 %  57.7 %"
                "  2025-01-02 03:04",
            ],
        ),
    ],
)
def test_a_narrow_terminal_keeps_what_an_id_does_not_tell(width: int, expected: list[str]) -> None:
    assert shown(LINES, width) == expected


def test_no_line_is_folded_and_no_id_is_cut_at_any_width() -> None:
    assert set(BY_PRIORITY) == set(SHOWN)
    columns = 0
    for width in range(1, 180):
        head, *lines = shown(LINES, width)
        assert [line.split()[0] for line in lines] == [line["run"] for line in LINES]
        assert max(map(cell_len, (head, *lines))) <= max(width, len(LINES[1]["run"]))
        assert len(head.split()) >= columns, "a wider terminal shows no less"
        columns = len(head.split())
    assert tuple(head.split()) == SHOWN
    assert LABEL in lines[0]


def test_a_pipe_gets_everything(fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    options = {"temperature": 7.5, "generator_every": 1, "generator_steps": 3, "generator_width": 16}
    scores = {"accuracy": 0.5, "f1": 0.25}
    run = fake_run(tmp_path, "fedbm", seed=3, clients=7, rounds=4, beta=0.05, options=options, best=scores)
    edit(run / "summary.json", id="fedbm-digits-s3-c039073dbc5d")
    status, out, err = fedbm("list", "--out", tmp_path)
    assert (status, err) == (0, "")
    head, line = out.splitlines()
    assert tuple(head.split()) == SHOWN
    label = "fedbm · temperature=7.5, generator_every=1, generator_steps=3, generator_width=16"
    when = f"{datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC).astimezone():%Y-%m-%d %H:%M}"
    cells = [label, "digits", "β 0.05", "7", "4/4", "3", "50.0 %", "25.0 %", when]
    assert " ".join(line.split()) == " ".join(["fedbm-digits-s3-c039073dbc5d", *cells])


def test_runs_that_are_not_finished(fedbm: Command, tmp_path: Path) -> None:
    """Unfinished, failed and unreadable runs have a line each; the reasons follow, each once."""
    half = fake_run(tmp_path, "fedavg", seed=0, rounds=6, done=2, beta=None, leave_out=["environment.json"])
    failed = [fake_run(tmp_path, "fedbm", seed=seed, rounds=6, done=3) for seed in (0, 1)]
    for folder in failed:
        keep_failure(folder, Failure("round 4: the update of client 0 is not finite"))
    odd = fake_run(tmp_path, "fedprox", seed=0, rounds=6, done=1)
    (odd / "rounds.jsonl").write_text("{\n{}\n")
    status, out, err = fedbm("list", "--out", tmp_path)
    assert (status, err) == (0, "")
    _, *lines = out.splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines[:4]}
    assert found[half.name] == ["fedavg", "digits", "iid", "10", "2/6", "0", "–", "–", "–"]
    assert [found[folder.name][5:9] for folder in failed] == [["failed", "3/6", str(seed), "–"] for seed in (0, 1)]
    assert found[odd.name] == ["unreadable"]
    assert lines[4] == f"failed: {failed[0].name} and 1 more: round 4: the update of client 0 is not finite"
    assert lines[5].startswith("unreadable: ")
    assert str(odd / "rounds.jsonl") in lines[5]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("classes", "label"),
    [
        ("0123456789", "fedbm · temperature=7.5"),  # digits recommends a generator of width 32
        ("012", "fedbm · temperature=7.5, generator_width=32"),  # other images of that name do not
    ],
)
def test_an_unfinished_run_is_told_by_its_options(fedbm: Command, tmp_path: Path, classes: str, label: str) -> None:
    fake_run(tmp_path, classes=classes, done=1, options={"temperature": 7.5, "generator_width": 32})
    assert f" {label}  digits  " in fedbm("list", "--out", tmp_path)[1]


def test_a_method_of_another_version_is_told_by_its_name(fedbm: Command, tmp_path: Path) -> None:
    fake_run(tmp_path, done=1, options={"no_longer": 1})
    assert " fedbm   digits  " in fedbm("list", "--out", tmp_path)[1]


def test_all_rounds_and_no_result(fedbm: Command, tmp_path: Path) -> None:
    fake_run(tmp_path, rounds=6, done=6)
    (run,) = tmp_path.iterdir()
    (run / "summary.json").unlink(missing_ok=True)
    assert " 6/6 no result " in fedbm("list", "--out", tmp_path)[1]


def test_a_terminal_of_the_users_own_width(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path, method, rounds=2) for method in ("fedavg", "fedbm")]
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=55)
    execute(Namespace(settings={"out": str(tmp_path)}, json=False), terminal)
    assert isinstance(terminal.file, io.StringIO)
    head, *lines = terminal.file.getvalue().splitlines()
    assert head.split() == ["run", "partition", "rounds", "accuracy"]
    assert [line.split()[0] for line in lines] == [run.name for run in runs]


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
    assert f" digits  {words} " in fedbm("list", "--out", tmp_path)[1]
