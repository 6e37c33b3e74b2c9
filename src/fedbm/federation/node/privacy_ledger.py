"""<state>/privacy.json: counts what has left a site in all runs on its data, so that their privacy loss adds up.

    {"format": 1, "runs": {run: {"releases": [{"noise": z, "clip": C, "count": n}, …], "exact": false,
                                 "answers": {"train": n, "evaluate": n}}}}

A release is counted before it is computed: it can count an update that never left, but never misses one. *exact* is
true if anything left in that run without noise: an update, label counts, or confusion matrices. Then no finite ε bounds
the total over all runs. Deleting the file restarts the count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
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


def count_release(
    path: Path,
    run: str,
    privacy: Mapping[str, float] | None,
    policy: Policy,
    request: str = "",
    most: int = 0,
    write: bool = True,
) -> dict[str, Any] | None:
    """Count what may leave in *run*, and return the site's privacy loss at δ. Several processes can do so at once.

    *privacy* contains noise, clip and delta; it is None if what leaves has no noise, and so is the result. If
    anything ever left without noise, "epsilon_all_runs" is None and "bound" is "none". Raise Refusal if this would
    exceed the policy's ε, or *most* answers to this *request*, or if the file is damaged or cannot be written. Then
    nothing is counted, and nothing may leave. Without *write* this is only a check, and nothing is counted either.
    """
    with _locked(path) as runs:
        entry = runs.setdefault(run, {"releases": [], "exact": False})
        if request:
            answers = entry.setdefault("answers", {})
            answers[request] = answers.get(request, 0) + 1
            if answers[request] > most:
                raise Refusal("answers")
        if privacy is None:
            entry["exact"] = True
        else:
            kind = {key: privacy[key] for key in ("noise", "clip")}
            known = next((item for item in entry["releases"] if kind.items() <= item.items()), None)
            if known is None:
                entry["releases"].append(known := {**kind, "count": 0})
            known["count"] += 1
            if policy.max_epsilon is not None:
                total = _loss(runs.values(), policy.delta)
                if total is None or total > policy.max_epsilon:
                    raise Refusal("epsilon")
        if write:
            write_json(path, {"format": FORMAT, "runs": runs})
    if privacy is None:
        return None
    total = _loss(runs.values(), privacy["delta"])
    return {
        "delta": privacy["delta"],
        "epsilon": _loss([entry], privacy["delta"]),
        "epsilon_all_runs": total,
        "bound": "none" if total is None else "finite",
    }


@contextmanager
def _locked(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the runs on file while no other process can change them."""
    with refuse_on_error("privacy", OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("a") as handle:
            lock_file(handle.fileno(), wait=True)
            remedy = "; restore a good copy. Nothing leaves this site until then"
            found: Any = read_json(path, remedy) if path.exists() else {"format": FORMAT, "runs": {}}
            decode(_LEDGER, found, path, remedy)
            yield found["runs"]


def _loss(runs: Collection[dict[str, Any]], delta: float) -> float | None:
    """Return ε of all releases of these runs together, or None if no finite ε bounds them."""
    if any(run["exact"] for run in runs):
        return None
    rho = math.fsum(item["count"] / (2 * item["noise"] ** 2) for run in runs for item in run["releases"])
    return epsilon(rho, delta)
