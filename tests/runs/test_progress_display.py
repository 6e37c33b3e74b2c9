"""The remaining time: one estimate from the latest finished rounds of all runs."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from fedbm.engine.round_loop import Event
from fedbm.engine.round_record import RoundRecord, Traffic
from fedbm.runs import progress_display
from fedbm.runs.failure import Failure
from fedbm.runs.progress_display import RECENT_ROUNDS, RemainingTime, show_runs


def finished(round_: int, seconds: float = 2.0, **more: Any) -> Event:
    record = RoundRecord(
        round=round_,
        loss={"cross_entropy": 1.0},
        dropped=(),
        generator=None,
        val=None,
        test=None,
        personal=None,
        bytes=Traffic(),
        seconds={"total": seconds},
    )
    return Event(round_, "done", record=record, **more)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, as its only item."""
    now = [0.0]
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: now[0])
    return now


def test_all_rounds_of_all_runs_count(clock: list[float]) -> None:
    estimate = RemainingTime({"a": 10, "b": 10, "c": 10})
    for run in "ab":
        assert estimate.update(run, Event(1, "train", 1, 4)) == "", "nothing is known before a round ended"
    clock[0] = 2.0
    assert estimate.update("a", finished(1)) == "remaining 58.0 s for all runs"
    assert estimate.update("b", finished(1)) == "remaining 28.0 s for all runs", "two rounds in 2 s"
    assert estimate.update("b", Failure("the disk is full")) == "remaining 19.0 s for all runs", "no more rounds of it"
    clock[0] = 3.0
    assert estimate.update("c", finished(10, last=True)) == "remaining 9.00 s for all runs", "one run is left"
    assert estimate.update("a", finished(4, last=True)) == "", "patience may end a run before its planned rounds"
    assert estimate.rounds == 0


def test_rounds_before_a_checkpoint_are_not_counted(clock: list[float]) -> None:
    estimate = RemainingTime({"a": 50})
    estimate.update("a", Event(41, "train", 1, 4))
    assert estimate.rounds == 10
    clock[0] = 2.0
    assert estimate.update("a", finished(41)) == "remaining 18.0 s"


def test_a_slow_first_round_is_forgotten(clock: list[float]) -> None:
    estimate = RemainingTime({"a": 100})
    estimate.update("a", Event(1, "train", 1, 4))
    for round_ in range(1, RECENT_ROUNDS + 2):
        clock[0] += 90.0 if round_ == 1 else 1.0
        words = estimate.update("a", finished(round_))
    assert words == "remaining 1 min 19 s"


@pytest.mark.parametrize("terminal", [True, False])
def test_each_round_shows_the_remaining_time(terminal: bool, clock: list[float]) -> None:
    screen = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=150)
    with show_runs(screen, {0: ("fedavg", 3)}) as show:
        show(0, Event(1, "train"))
        clock[0] = 2.0
        show(0, finished(1))
    assert isinstance(screen.file, io.StringIO)
    assert "remaining 4.00 s" in screen.file.getvalue()


def test_several_runs_have_one_bar_for_all_rounds(clock: list[float]) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=150, markup=False)
    with show_runs(screen, {0: ("fedavg", 3), 1: ("fedbm", 3)}) as show:
        show(0, Event(1, "train"))
        clock[0] = 2.0
        show(0, finished(1))
        show(1, Failure("the disk is full"))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert "failed: fedbm: the disk is full" in shown
    assert re.search("all rounds .* 4/6 remaining 4.00 s for all runs", shown), "a failed run has no more rounds"
    assert "[bold]" not in shown
