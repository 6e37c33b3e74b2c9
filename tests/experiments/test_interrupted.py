"""A sweep that is killed at moments nobody chose ends with the table of one that never was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from forking import start_command

from fedbm.cli import main
from fedbm.experiments.outcomes import outcome_of, read_outcome
from fedbm.experiments.spec import parse
from fedbm.experiments.trials import find_state, locate, trials
from fedbm.report.experiments_report import experiments_report
from fedbm.report.render.csv import render_csv
from fedbm.runs.plan import make_plan
from fedbm.runs.runner import run

pytestmark = pytest.mark.long

GRID = """
title = "τ on digits"
[all]
data = "digits"
size = 16
width = 4
batch = 256
clients = 4
rounds = 5
generator_every = 2
generator_steps = 2
generator_batch = 8
generator_width = 8
pseudo_batch = 4
[axes]
beta = [0.1]
[[rows]]
name = "SCAFFOLD"
method = "scaffold"
[[rows]]
name = "τ = 7.5"
method = "fedbm"
temperature = 7.5
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_a_sweep_killed_at_random_ends_with_the_same_table(tmp_path: Path) -> None:
    """Real processes, SIGKILL to all of them at once; moments from a seed, counted in lines seen and a moment more."""
    file = tmp_path / "grid.toml"
    file.write_text(GRID, encoding="utf-8")
    where = ["--out", str(tmp_path / "broken"), "--records", str(tmp_path / "results"), "--device", "cpu"]
    words = ["sweep", str(file), "--seeds", "1", *where]
    moments, kills = random.Random(7), 0
    for _ in range(2):
        process = start_command(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        kills += killed_after(process, moments.randint(1, 5), moments.uniform(0, 0.2))
        process.communicate(timeout=400)
    assert main(words) == 0
    assert kills >= 1
    again = read_outcome(tmp_path / "results" / "grid.json")
    assert {result.state for result in again.results} == {"finished"}
    experiment = parse(GRID, "grid", "grid")
    settings: dict[str, Any] = {"out": str(tmp_path / "whole"), "device": "cpu", "threads": 1}
    planned = trials(experiment, range(1), settings)
    for trial in planned:
        for _ in run(make_plan(trial.config)):
            pass
    whole = outcome_of(experiment, [find_state(locate(trial)) for trial in planned])
    assert render_csv(experiments_report([again])) == render_csv(experiments_report([whole]))


def killed_after(process: subprocess.Popen[str], lines: int, seconds: float) -> bool:
    """Kill the whole group once so many rounds were seen, and a little later; whether it was still at work."""
    assert process.stdout is not None
    for line in process.stdout:
        lines -= " round " in line
        if lines <= 0:
            break
    time.sleep(seconds)
    working = process.poll() is None
    if working:
        os.killpg(process.pid, signal.SIGKILL)
    return working
