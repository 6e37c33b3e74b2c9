"""<state>/privacy.json: counts what has left a site in all runs on its data, so that their privacy loss adds up.

    {"format": 1, "runs": {run: {"releases": [{"noise": z, "clip": C, "count": n}, …], "exact": false,
                                 "answers": {"train": n, "evaluate": n}}}}

A release is counted before it leaves: a crash can count an update that never left, but never misses one. *exact* is
true if anything left in that run without noise: an update, label counts, or confusion matrices. Then no finite ε bounds
the total over all runs. Deleting the file restarts the count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedbm.errors import FedBMError
from fedbm.federation.audit import exclusive_lock
from fedbm.federation.node.privacy import epsilon
from fedbm.federation.protocol.messages import PRIVACY_LIMITS
from fedbm.utils.io import cannot_write, read_json, write_json
from fedbm.utils.schema import Lengths, check, each, keys, number, whole

FORMAT = 1


def _flag(value: Any, at: str, lengths: Lengths) -> str:
    return "" if type(value) is bool else f"{at} must be true or false"


_RELEASE = keys({"noise": number(*PRIVACY_LIMITS["noise"]), "clip": number(*PRIVACY_LIMITS["clip"]), "count": whole(1)})
_RUN = keys({"releases": each(_RELEASE), "exact": _flag, "answers?": keys({}, whole(1))})
_LEDGER = keys({"format": whole(FORMAT, FORMAT), "runs": keys({}, _RUN)})


class Limit(NamedTuple):
    """The largest privacy loss over all runs that a site allows."""

    epsilon: float
    delta: float


class LimitError(FedBMError):
    """An update would exceed the site's limit."""


class AnswersError(FedBMError):
    """A run has already received its maximum number of answers."""


class PrivacyLedger:
    """The record of releases of one site; several processes can use it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count_noisy(self, run: str, privacy: Mapping[str, float], limit: Limit | None = None) -> dict[str, Any]:
        """Count one more noisy update of *run* with the terms *privacy*, and return the site's privacy loss at δ.

        If anything left without noise, "epsilon_all_runs" is None and "bound" is "none". If the file is damaged or
        cannot be written, raise FedBMError, and if the update would exceed *limit*, LimitError; then nothing may leave.
        """
        with self._locked() as runs:
            _add_release(runs, run, privacy, limit)
            self._write(runs)
            total = _loss(list(runs.values()), privacy["delta"])
            return {
                "delta": privacy["delta"],
                "epsilon": _loss([runs[run]], privacy["delta"]),
                "epsilon_all_runs": total,
                "bound": "none" if total is None else "finite",
            }

    def check_limit(self, run: str, privacy: Mapping[str, float], limit: Limit) -> None:
        """Raise LimitError if one more noisy update of *run* would exceed *limit*. Nothing is counted."""
        with self._locked() as runs:
            _add_release(runs, run, privacy, limit)

    def count_answer(self, run: str, kind: str, most: int) -> None:
        """Count one more answer of this kind in *run*; raise AnswersError if it already has *most*.

        Raise other errors as count_noisy() does.
        """
        with self._locked() as runs:
            answers = runs.setdefault(run, {"releases": [], "exact": False}).setdefault("answers", {})
            if answers.get(kind, 0) >= most:
                raise AnswersError(f"run {run} already has {most} answers to {kind}")
            answers[kind] = answers.get(kind, 0) + 1
            self._write(runs)

    def record_exact(self, run: str) -> None:
        """Record that something leaves in *run* without noise; raise FedBMError as count_noisy() does."""
        with self._locked() as runs:
            entry = runs.setdefault(run, {"releases": [], "exact": False})
            if not entry["exact"]:
                entry["exact"] = True
                self._write(runs)

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Yield the runs on file while no other process can change them."""
        lock = self.path.with_suffix(".lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            handle = lock.open("a")
        except OSError as error:
            raise cannot_write(lock, error) from error
        with handle, exclusive_lock(handle.fileno()):
            yield self._read()

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        remedy = "; restore a good copy. Nothing leaves this site until then"
        try:
            found = read_json(self.path)
        except FedBMError as error:
            raise FedBMError(f"{error}{remedy}") from error
        check(found, _LEDGER, self.path, remedy)
        runs: dict[str, Any] = found["runs"]
        return runs

    def _write(self, runs: Mapping[str, Any]) -> None:
        write_json(self.path, {"format": FORMAT, "runs": runs})


def _add_release(runs: dict[str, Any], run: str, privacy: Mapping[str, float], limit: Limit | None) -> None:
    releases = runs.setdefault(run, {"releases": [], "exact": False})["releases"]
    kind = {"noise": privacy["noise"], "clip": privacy["clip"]}
    known = next((item for item in releases if kind.items() <= item.items()), None)
    if known is None:
        releases.append({**kind, "count": 1})
    else:
        known["count"] += 1
    if limit is not None:
        total = _loss(list(runs.values()), limit.delta)
        if total is None or total > limit.epsilon:
            raise LimitError(f"one more update would exceed ε = {limit.epsilon:g} at δ = {limit.delta:g}")


def _loss(runs: list[dict[str, Any]], delta: float) -> float | None:
    """Return ε of all releases of these runs together, or None if no finite ε bounds them."""
    if any(run["exact"] for run in runs):
        return None
    rho = math.fsum(item["count"] / (2 * item["noise"] ** 2) for run in runs for item in run["releases"])
    return epsilon(rho, delta)
