"""Whether a run would end within a budget: by the pace of its kind, here or on record, or of the slowest kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbm.engine.checkpoint import Progress, save_checkpoint
from fedbm.experiments.budget import LastRounds, fits, fitting, pace_of, paces
from fedbm.experiments.estimate import kind_of
from fedbm.runs.config import Config, make_config
from fedbm.runs.timing_log import Portion

A, B, C = ("a",), ("b",), ("c",)


def test_paces_are_means_over_the_rounds_of_a_kind_and_one_round_tells_nothing() -> None:
    portion = Portion("cpu", rounds={"a0": 2, "a1": 8, "b0": 1}, seconds={"a0": 6.0, "a1": 14.0, "b0": 99.0})
    assert paces(portion, {"a0": A, "a1": A, "b0": B}) == {A: 2.0}
    assert paces(Portion("cpu"), {}) == {}


def test_a_kind_that_nothing_is_known_of_is_taken_for_the_slowest() -> None:
    played = {A: 1.0, B: 3.0}
    assert pace_of(A, played, {}) == 1.0
    assert pace_of(C, played, {}) == pace_of(C, played, {A: 70.0, B: 80.0}) == 3.0
    assert pace_of(A, {}, {}) is None, "the first tells"
    assert pace_of(A, {}, {B: 1.0}) is None, "and one of another kind on record does not"


def test_a_kind_on_record_goes_as_much_slower_as_those_that_were_played() -> None:
    """A goes at twice, B at four times the seconds on record, so C, of 5 s there, is taken to need 15."""
    recorded = {A: 1.0, B: 2.0, C: 5.0}
    assert pace_of(C, {A: 2.0, B: 8.0}, recorded) == pytest.approx(15.0)
    assert pace_of(C, {A: 0.5}, recorded) == pytest.approx(2.5), "faster as well"
    assert pace_of(C, {("d",): 99.0}, recorded) == 5.0, "none is known in both"
    assert pace_of(C, {}, recorded) == 5.0, "nothing was played yet"
    assert pace_of(A, {A: 2.0, B: 8.0}, recorded) == 2.0, "what was played here tells most"
    assert pace_of(C, {A: 2.0}, {A: 0.0, C: 5.0}) == 5.0, "no pace to compare with"
    assert pace_of(C, {A: 2.0}, {C: 0.0}) == 2.0, "no time at all is no number either"


def test_rounds_left_must_end_in_the_seconds_left() -> None:
    assert fits(1.0, 10, beside=0, together=1, left=10.0)
    assert not fits(1.0, 10, beside=0, together=1, left=9.9)


def test_fewer_beside_it_leave_it_more_of_the_device() -> None:
    """1 s a round with four together: 100 rounds take 100 s beside three, 25 s alone."""
    assert [fits(1.0, 100, beside, 4, 50.0) for beside in range(4)] == [True, True, False, False]


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
        fitted = [fitting(runs, 1, 30 + budget, portion, {})(number, 0) for budget in (seconds - 1, seconds)]
        assert fitted == [False, True], runs[number][0].name


def test_a_kind_on_record_is_judged_by_it_from_the_first_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rounds of 3 s on record: not begun in 29 s, nor in 59 once FedAvg takes twice what it took."""
    fedavg, fedbm = (make_config({"method": {"name": name}, "train": {"rounds": 10}}) for name in ("fedavg", "fedbm"))
    runs, recorded = [(tmp_path / "a", fedavg), (tmp_path / "b", fedbm)], {kind_of(fedavg): 1.0, kind_of(fedbm): 3.0}
    portion = Portion("cpu")
    monkeypatch.setattr(portion, "so_far", lambda: 0.0)
    assert [fitting(runs, 1, budget, portion, recorded)(1, 0) for budget in (29.0, 30.0)] == [False, True]
    portion.rounds["a"], portion.seconds["a"] = 5, 10.0
    assert [fitting(runs, 1, budget, portion, recorded)(1, 0) for budget in (59.0, 60.0)] == [False, True]
    assert fitting(runs, 1, 20.0, portion, {})(1, 0), "without it, by the slowest that was played"


def test_the_last_rounds_are_those_that_end_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a run's own latest, a tenth of the budget at most: one of short rounds goes on beside one of long ones."""
    now = 0.0
    monkeypatch.setattr(Portion, "so_far", lambda self: now)
    ending = LastRounds(100.0, Portion("cpu"), {0: 2.0, 1: 0.5, 2: 50.0})
    told = {}
    for now in (89.0, 91.0, 97.0, 99.0, 99.9):
        told[now] = [number for number in range(4) if ending(number)]
        assert ending.said == (now > 90)
    assert told == {89.0: [], 91.0: [2], 97.0: [2], 99.0: [0, 2], 99.9: [0, 1, 2]}, "of the fourth no round is known"
    assert not LastRounds(None, Portion("cpu"), {0: 50.0})(0)
