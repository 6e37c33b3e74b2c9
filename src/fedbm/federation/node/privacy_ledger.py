"""<state>/privacy.json: counts what has left a site in all runs on its data, so that their privacy loss adds up.

    {"format": 1, "runs": {run: {"releases": [{"noise": z, "clip": C, "count": n}, …], "exact": false,
                                 "answers": {"train": n, "evaluate": n}}}}

A release is counted before it is computed: it can count an update that never left, but never misses one. *exact* is
true if anything left in that run without noise: an update, label counts, or confusion matrices. Then no finite ε bounds
the total over all runs. Deleting the file restarts the count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from fedbm.federation.deploy.settings_files import Policy
from fedbm.federation.node.privacy import epsilon
from fedbm.federation.protocol.messages import PRIVACY_LIMITS, Refusal, refuse_on_error
from fedbm.utils.io import lock_file, read_json, write_json
from fedbm.utils.json_records import Keys, Positive, Range, decode

FORMAT = 1

_RELEASE: Any = Keys({key: Annotated[float, Range(*PRIVACY_LIMITS[key])] for key in ("noise", "clip")}, count=Positive)
_RUN: Any = Keys({"releases": tuple[_RELEASE, ...], "exact": bool, "answers?": Mapping[str, Positive]})
_LEDGER: Any = Keys({"format": Annotated[int, Range(FORMAT, FORMAT)], "runs": Mapping[str, _RUN]})


class PrivacyLedger:
    """The record of releases of one site; several processes can use it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(
        self, run: str, privacy: Mapping[str, float] | None, policy: Policy, kind: str = "", most: int = 0
    ) -> dict[str, Any] | None:
        """Count what may leave in *run*, and return the site's privacy loss at δ.

        *privacy* contains noise, clip and delta; it is None if what leaves has no noise, and so is the result. If
        anything ever left without noise, "epsilon_all_runs" is None and "bound" is "none". Raise Refusal if this would
        exceed the policy's ε, or *most* answers of this *kind*, or if the file is damaged or cannot be written. Then
        nothing is counted, and nothing may leave.
        """
        with self._locked() as runs:
            entry = runs.setdefault(run, {"releases": [], "exact": False})
            if kind:
                answers = entry.setdefault("answers", {})
                answers[kind] = answers.get(kind, 0) + 1
                if answers[kind] > most:
                    raise Refusal("answers")
            if privacy is None:
                entry["exact"] = True
            else:
                _add_release(runs, run, privacy, policy)
            write_json(self.path, {"format": FORMAT, "runs": runs})
        if privacy is None:
            return None
        total = _loss(list(runs.values()), privacy["delta"])
        return {
            "delta": privacy["delta"],
            "epsilon": _loss([entry], privacy["delta"]),
            "epsilon_all_runs": total,
            "bound": "none" if total is None else "finite",
        }

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Yield the runs on file while no other process can change them."""
        with refuse_on_error("privacy", OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("a") as handle:
                lock_file(handle.fileno(), wait=True)
                yield self._read()

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        remedy = "; restore a good copy. Nothing leaves this site until then"
        found = read_json(self.path, remedy)
        decode(_LEDGER, found, self.path, remedy)
        runs: dict[str, Any] = found["runs"]
        return runs


def _add_release(runs: dict[str, Any], run: str, privacy: Mapping[str, float], policy: Policy) -> None:
    """Add one noisy update to *runs*; raise Refusal if that exceeds the policy's ε."""
    releases = runs.setdefault(run, {"releases": [], "exact": False})["releases"]
    kind = {"noise": privacy["noise"], "clip": privacy["clip"]}
    known = next((item for item in releases if kind.items() <= item.items()), None)
    if known is None:
        releases.append({**kind, "count": 1})
    else:
        known["count"] += 1
    if policy.max_epsilon is not None:
        total = _loss(list(runs.values()), policy.delta)
        if total is None or total > policy.max_epsilon:
            raise Refusal("epsilon")


def _loss(runs: list[dict[str, Any]], delta: float) -> float | None:
    """Return ε of all releases of these runs together, or None if no finite ε bounds them."""
    if any(run["exact"] for run in runs):
        return None
    rho = math.fsum(item["count"] / (2 * item["noise"] ** 2) for run in runs for item in run["releases"])
    return epsilon(rho, delta)
