"""Limit the time that several runs share, so that no finished round is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable

from fedbm.errors import FedBMError

MAX_RESERVE = 0.1  # share of the budget kept for finishing the current round


class Budget:
    """Time that several runs share, in seconds; None means no limit.

    Near the end of the budget each run finishes its current round and writes a checkpoint. A run stops when its
    next round would end too late if it took as long as the latest. At most 10 % of the budget is reserved for that.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.rounds = 0  # finished within the budget
        self._began = time.monotonic()
        self._latest: dict[Hashable, float] = {}  # seconds of each run's latest round
        self._stopped = False

    def stop(self) -> None:
        """Let every run stop after its current round."""
        self._stopped = True

    def add_round(self, run: Hashable, seconds: float) -> None:
        """Record how many seconds a finished round of this run took."""
        self.rounds += 1
        self._latest[run] = seconds

    def is_last_round(self, run: Hashable) -> bool:
        """Return whether the run must stop after its current round."""
        if self.seconds is None or self._stopped:
            return self._stopped
        return self.elapsed() > self.seconds - min(self._latest.get(run, 0.0), MAX_RESERVE * self.seconds)

    def elapsed(self) -> float:
        """Return the seconds since the budget was made."""
        return time.monotonic() - self._began

    def remaining(self) -> float | None:
        """Return the seconds left, or None if there is no limit."""
        return None if self.seconds is None else self.seconds - self.elapsed()


def parse_duration(text: str) -> float:
    """Return the seconds in a text such as "25m".

    >>> parse_duration("25m"), parse_duration("1h30m"), parse_duration("90s"), parse_duration("45")
    (1500.0, 5400.0, 90.0, 45.0)
    """
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not found or not any(found.groups()):
        raise FedBMError(f'a budget must be a time such as 25m, 90s or 1h30m, not "{text}"')
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(3600 * hours + 60 * minutes + seconds)
