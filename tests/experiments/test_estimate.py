"""The estimate of remaining time: rounds × seconds per round of runs of the same method, data and device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import edit, fake_run

from fedbm.engine.checkpoint import Progress, save_checkpoint
from fedbm.experiments.estimate import estimate_remaining
from fedbm.experiments.spec import parse
from fedbm.experiments.trials import Trial, trials
from fedbm.runs.run_record import write_record
from fedbm.runs.run_view import read_run

GRID = '[all]\ndata = "digits"\nrounds = 50\n[axes]\nmethod = ["fedavg", "fedbm", "fedprox"]'


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a folder with two finished runs of 6 rounds: FedAvg took 2 s a round, FedBM 4 s."""
    for method, seconds in (("fedavg", 12.0), ("fedbm", 24.0)):
        edit(fake_run(tmp_path / "runs", method, rounds=6) / "summary.json", seconds=seconds)
    return tmp_path / "runs"


def not_run(out: Path) -> list[Trial]:
    found = trials(parse(GRID, "g", "g"), [0], {})
    return [replace(t, folder=out / t.config.method.name) for t in found]


def test_time_is_rounds_times_seconds_per_round(out: Path, tmp_path: Path) -> None:
    fedavg, fedbm, fedprox = not_run(out)
    for states, parallel, line in (
        ([fedavg], 1, "1 run remains, about 1 min 40 s on this device"),
        ([fedavg, fedbm], 1, "2 runs remain, about 5 min 0 s on this device"),
        ([fedavg, fedbm], 2, "2 runs remain, about 2 min 30 s on this device"),
        ([fedavg], 2, "1 run remains, about 1 min 40 s on this device"),
        ([fedavg, fedprox], 1, "2 runs remain, about 1 min 40 s on this device for 1 of them"),
        ([fedprox], 1, "1 run remains"),
        ([], 1, ""),
    ):
        assert str(estimate_remaining(states, out, tmp_path / "results", "cpu", parallel)) == line


def test_another_device_gives_no_number(out: Path, tmp_path: Path) -> None:
    assert str(estimate_remaining(not_run(out), out, tmp_path / "results", "NVIDIA H200", 1)) == "3 runs remain"


def test_one_slow_run_does_not_change_the_median(out: Path, tmp_path: Path) -> None:
    for seed, seconds in ((1, 12.0), (2, 1e6)):
        edit(fake_run(out, "fedavg", seed, rounds=6) / "summary.json", seconds=seconds)
    line = str(estimate_remaining(not_run(out)[:1], out, tmp_path / "results", "cpu", 1))
    assert line == "1 run remains, about 1 min 40 s on this device"


def test_records_count_like_runs(out: Path, tmp_path: Path) -> None:
    for folder in out.glob("*-*"):
        write_record(read_run(folder), tmp_path / "results" / "runs" / f"{folder.name}.json")
    line = str(estimate_remaining(not_run(out)[:2], tmp_path / "elsewhere", tmp_path / "results", "cpu", 1))
    assert line == "2 runs remain, about 5 min 0 s on this device"


def test_rounds_before_the_checkpoint_are_not_counted(out: Path, tmp_path: Path) -> None:
    (fedavg, *_) = not_run(out)
    assert fedavg.folder is not None
    save_checkpoint(fedavg.folder, fedavg.folder.name, {}, Progress(round=40))
    line = str(estimate_remaining([fedavg], out, tmp_path / "results", "cpu", 1))
    assert line == "1 run remains, about 20.0 s on this device"
