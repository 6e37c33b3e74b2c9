"""Limit the time that several runs share, so that no finished round is lost."""

from __future__ import annotations

import time

MAX_RESERVE = 0.1  # share of the budget kept for finishing the current round


class Budget:
    """Time that several runs share.

    Near the end of the budget each run finishes its current round and writes a checkpoint. A run is told to stop when
    its next round, if as long as its latest, would end too late. At most 10 % of the budget is reserved for that.

    Args:
        seconds: the time available; None means no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.rounds = 0  # finished within the budget
        self._began = time.monotonic()
        self._latest: dict[int, float] = {}  # seconds of each run's latest round
        self._stopped = False

    def add_round(self, run: int, seconds: float) -> None:
        """Note that a round of this run has ended after so many seconds."""
        self.rounds += 1
        self._latest[run] = seconds

    def is_last_round(self, run: int) -> bool:
        """Return whether the run must stop after its current round."""
        if self.seconds is None:
            return False
        last = self.elapsed() > self.seconds - min(self._latest.get(run, 0.0), MAX_RESERVE * self.seconds)
        self._stopped |= last
        return last

    def elapsed(self) -> float:
        """Return the seconds since the budget was made."""
        return time.monotonic() - self._began

    def remaining(self) -> float | None:
        """Return the seconds left, or None if there is no limit."""
        return None if self.seconds is None else self.seconds - self.elapsed()

    @property
    def is_spent(self) -> bool:
        """Whether a run had to stop because of the budget."""
        remaining = self.remaining()
        return self._stopped or (remaining is not None and remaining <= 0)
