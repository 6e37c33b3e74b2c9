"""Whether a run would end within a budget: by the pace of its kind, of the slowest kind, or nobody knows yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbm.config import Config, make_config
from fedbm.engine.checkpoint import Progress, save_checkpoint
from fedbm.experiments.fitting import fits, fitting, paces
from fedbm.results.portions import Portion

A, B = ("a",), ("b",)


def test_paces_are_means_over_the_rounds_of_a_kind_and_one_round_tells_nothing() -> None:
    portion = Portion("cpu", rounds={"a0": 2, "a1": 8, "b0": 1}, seconds={"a0": 6.0, "a1": 14.0, "b0": 99.0})
    assert paces(portion, {"a0": A, "a1": A, "b0": B}) == {A: 2.0}
    assert paces(Portion("cpu"), {}) == {}


def test_a_kind_that_was_not_played_is_taken_for_the_slowest() -> None:
    known = {A: 1.0, B: 3.0}
    assert fits(A, 10, beside=0, together=1, left=10.0, known=known)
    assert not fits(A, 10, beside=0, together=1, left=9.9, known=known)
    assert fits(("c",), 10, beside=0, together=1, left=30.0, known=known)
    assert not fits(("c",), 10, beside=0, together=1, left=29.9, known=known)
    assert fits(A, 10, beside=0, together=1, left=-5.0, known={}), "the first tells"


def test_fewer_beside_it_leave_it_more_of_the_device() -> None:
    """1 s a round with four together: 100 rounds take 100 s beside three, 25 s alone."""
    assert [fits(A, 100, beside, 4, 50.0, {A: 1.0}) for beside in range(4)] == [True, True, False, False]


def test_a_run_half_played_needs_half_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half is what the checkpoint has behind it: lines of later rounds, or of a run without one, are played again."""
    config: Config = make_config({"train": {"rounds": 10}})
    runs = [(tmp_path / name, config) for name in ("new", "half", "lost", "played")]
    lines = "".join(json.dumps({"round": number}) + "\n" for number in range(1, 9))
    for name in ("half", "lost"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rounds.jsonl").write_text(lines, encoding="utf-8")
    save_checkpoint(tmp_path / "half", "half", {}, Progress(round=5))
    portion = Portion("cpu", rounds={"played": 4}, seconds={"played": 8.0})
    monkeypatch.setattr(portion, "so_far", lambda: 30.0)
    for number, seconds in ((0, 20.0), (1, 10.0), (2, 20.0)):
        fitted = [fitting(runs, 1, 30 + budget, portion)(number, 0) for budget in (seconds - 1, seconds)]
        assert fitted == [False, True], runs[number][0].name
