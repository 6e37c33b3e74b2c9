"""Check from the files of the runs whether a comparison is fair, and whether a run needs attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedbm.methods import is_central
from fedbm.report.advice import advise
from fedbm.report.document import Finding
from fedbm.report.group import Group
from fedbm.report.grouping import AVERAGE, find_varying, settings
from fedbm.runs.run_view import RunView, partition_digest

KEEP_OPTIMIZER = "train.keep_optimizer"  # central training keeps its optimiser's state by definition


def check_comparison(group: Group) -> list[Finding]:
    """Return the result of every check."""
    seeds = [f"{row.name} {_join(sorted(row.seeds))}" for row in group.rows]
    enough = len({row.seeds for row in group.rows}) == 1 and len(group.rows[0].seeds) > 1
    environments = [run.environment for run in group.runs if run.environment is not None]
    versions = [{key: str(one.get(key, "unknown")) for key in ("fedbm", "torch", "device")} for one in environments]
    dropped = Counter(run.label for run in group.runs for record in run.rounds for _ in record.dropped or ())
    return [
        Finding(enough, f"Seeds, at best several and the same in every row: {'; '.join(seeds) or 'no finished run'}."),
        *_inequalities(group.runs),
        _finding("Versions and devices that differ", _values(find_varying(versions), versions)),
        _finding(
            "Updates of clients left out of the average", [f"{count} of {name}" for name, count in dropped.items()]
        ),
    ]


def find_inequalities(group: Group) -> tuple[str, ...]:
    """Return in what the finished rows differ apart from the method: in settings, or in samples at equal seeds."""
    found = _inequalities([run for row in group.rows for run in row.runs])
    return tuple(one.sentence for one in found if not one.holds)


def _inequalities(runs: Sequence[RunView]) -> list[Finding]:
    """Check that data, model and training are the same, and the clients' samples at each seed.

    Language and method options are what is compared. Central training has no clients.
    """
    each = [
        {**settings(run, "data", "model", "train"), "own body": run.config.get("own", {}).get("body")} for run in runs
    ]
    keys = [key for key in find_varying(each) if key != AVERAGE]
    federated = [(run, one) for run, one in zip(runs, each, strict=True) if not is_central(run.method)]
    kept = {one.get(KEEP_OPTIMIZER) for _, one in federated}
    if KEEP_OPTIMIZER in keys and len(kept) < 2:
        keys.remove(KEEP_OPTIMIZER)
    partitions: dict[int, set[str]] = {}
    for run, _ in federated:
        if run.client_partition is not None:
            partitions.setdefault(run.seed, set()).add(partition_digest(run.client_partition))
    unequal = [str(seed) for seed, digests in sorted(partitions.items()) if len(digests) > 1]
    return [
        _finding("Differences other than the method", _values(keys, each)),
        _finding("Seeds at which clients have different samples", unequal),
    ]


def collect_advice(group: Group) -> list[Finding]:
    """Return each kind of advice once, with the runs that need it."""
    runs: dict[str, list[str]] = {}  # action → evidence, by run
    for run in group.runs:
        for one in advise(run):
            runs.setdefault(one.action, []).append(f"{run.label}, seed {run.seed}: {one.evidence}")
    return [Finding(False, action, tuple(evidence)) for action, evidence in runs.items()]


def _finding(title: str, found: Sequence[str]) -> Finding:
    return Finding(not found, f"{title}: {'; '.join(found) or 'none'}.")


def _values(keys: Iterable[str], each: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return ['train.lr (0.01, 0.1)', …]."""
    return [f"{key} ({_join(dict.fromkeys(str(one.get(key, 'unset')) for one in each))})" for key in keys]


def _join(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
