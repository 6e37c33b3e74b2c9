"""Killed at any moment, interrupted, started twice: the folder holds a whole run, and the same command ends it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forking import start_command
from whole_runs import after_round, assert_same_run, command, folder_of, plan_of, play

from fedbm.cli import main
from fedbm.engine.checkpoint import load_checkpoint
from fedbm.runs import run_file_writer
from fedbm.runs.plan import Plan
from fedbm.utils.fingerprint import package_digest

pytestmark = pytest.mark.long
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that can fork")


@needs_fork
@pytest.mark.parametrize(("finishing", "every"), [(False, 1), (True, 1), (False, 3)])
def test_killed_at_any_write(plan: Plan, unbroken: Path, finishing: bool, every: int) -> None:
    """The n-th attempt dies just before its n-th flush, rename or removal; attempts add up to the whole run."""
    engine = replace(plan.config.engine, checkpoint_every=every)
    plan = replace(plan, config=replace(plan.config, engine=engine))
    if finishing:
        play(plan, until=after_round(4))
    attempts = 0
    while die_at(attempts + 1, plan):
        attempts += 1
        assert attempts < 60 * every, "no attempt gets to the end"
    assert attempts >= 15
    assert_same_run(folder_of(plan), unbroken)


def test_stopped_between_a_checkpoint_and_its_picture(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = run_file_writer.draw_generated, []

    def interrupted(*arguments: Any) -> None:
        drawn.append(arguments)
        if len(drawn) == 1:
            raise KeyboardInterrupt
        draw(*arguments)

    monkeypatch.setattr(run_file_writer, "DRAWN_ROUNDS", (2,))
    monkeypatch.setattr(run_file_writer, "draw_generated", interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(plan)
    assert not (folder_of(plan) / "generated" / "2.png").exists()
    play(plan)
    assert (folder_of(plan) / "generated" / "2.png").exists()
    assert len(drawn) == 3, "the one interrupted, the same again, and that of the end"


HELD = """
import json, sys
from fedbm.runs.run_config import make_config, to_sections
from fedbm.runs.plan import make_plan
from fedbm.runs.runner import run

events = run(make_plan(make_config(to_sections(json.loads(sys.argv[1])))))
for event in events:
    if event.record is not None:
        break
assert "torch._dynamo" not in sys.modules, "nothing is compiled, and it takes as long to import as the rest of PyTorch"
"""


def test_events_that_a_script_still_holds_when_it_ends_write_nothing_and_say_nothing(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    settings = json.dumps({**tiny, "checkpoint_every": 1000, "out": str(tmp_path)})
    ended = subprocess.run([sys.executable, "-c", HELD, settings], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [path.name for path in tmp_path.rglob("rounds.jsonl")] == ["rounds.jsonl"]
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


def die_at(moment: int, plan: Plan) -> bool:
    """Play in a forked process that kills itself at its *moment*-th touch of the disk; whether it came so far."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            touched = 0

            def deadly(act: Callable[..., Any]) -> Callable[..., Any]:
                def touch(*arguments: Any, **more: Any) -> Any:
                    nonlocal touched
                    touched += 1
                    if touched == moment:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return act(*arguments, **more)

                return touch

            os.fsync = deadly(os.fsync)
            for act in ("replace", "unlink"):
                setattr(Path, act, deadly(getattr(Path, act)))
            play(plan)
            status = 0
        finally:
            os._exit(status)  # the parent's tests are not this process's to end
    _, ended = os.waitpid(child, 0)
    assert os.WIFSIGNALED(ended) or os.WEXITSTATUS(ended) == 0
    return os.WIFSIGNALED(ended)


def started(words: list[str]) -> subprocess.Popen[str]:
    return start_command(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(text: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert any(text in line for line in process.stdout), process.communicate()


def test_killed_in_earnest(tiny_fedbm: dict[str, Any], tmp_path: Path) -> None:
    """Other processes, killed at moments nobody chose; this one ends the run by the same command."""
    settings = {**tiny_fedbm, "rounds": 8, "checkpoint_every": 0}  # as often as takes a fiftieth of the time
    words = command(settings, tmp_path / "broken")
    moments = random.Random(3)
    for seen in ("round 2/", "round 5/"):
        process = started(words)
        wait_for(seen, process)
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.communicate()
        if process.returncode == 0:  # on a busy machine it may be done before the kill arrives
            break
    assert main(words) == 0
    whole = plan_of(settings, tmp_path / "whole", keep_optimizer=True)
    play(whole)
    assert_same_run(folder_of(whole), tmp_path / "broken" / whole.id)
    environment = json.loads((tmp_path / "broken" / whole.id / "environment.json").read_text())
    assert environment["command"].startswith("fedbm run --data ")
    assert environment["source"] == package_digest(load_checkpoint)[:12]
    assert environment["engine"] == "reference"


def test_interrupted_and_refused(
    tiny_fedbm: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While one process works on a run another is refused; Ctrl-C ends the first, and what it leaves can be resumed."""
    settings = {**tiny_fedbm, "rounds": 1000}
    words = command(settings, tmp_path)
    process = started(words)
    wait_for("round 2/", process)
    assert main(words) == 2
    refusal = capsys.readouterr().err
    assert refusal.startswith("fedbm: another process is working on ")
    assert refusal.count("\n") == 1
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err == "fedbm: interrupted; run the same command again to continue\n"
    plan = plan_of(settings, tmp_path, keep_optimizer=True)
    folder = folder_of(plan)
    found = load_checkpoint(folder, plan.id, "cpu")
    assert found is not None
    assert not list(folder.rglob(".*.part"))
    assert play(plan, until=lambda event: True)[0].round == found[1].round + 1
