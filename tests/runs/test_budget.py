"""Near the end of a budget each run finishes its current round."""

from __future__ import annotations

import time

import pytest

from fedbm.runs.batch import Budget


def test_a_run_stops_when_its_next_round_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's latest round counts, up to a tenth of the budget; runs with shorter rounds continue longer."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    budget = Budget(100.0)
    for run, seconds in ((0, 2.0), (1, 0.5), (2, 50.0)):
        budget.add_round(run, seconds)
    last = {}
    for now in (89.0, 91.0, 97.0, 99.0, 99.9):
        last[now] = [run for run in range(4) if budget.is_last_round(run)]
    assert last == {89.0: [], 91.0: [2], 97.0: [2], 99.0: [0, 2], 99.9: [0, 1, 2]}


def test_without_a_limit_no_round_is_the_last() -> None:
    budget = Budget(None)
    budget.add_round(0, 1e9)
    assert not budget.is_last_round(0)
    assert budget.remaining() is None


def test_with_a_budget_of_no_time_every_round_is_the_last() -> None:
    budget = Budget(0.0)
    assert budget.is_last_round(0)
