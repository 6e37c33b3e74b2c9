"""Check from the files of the runs whether a comparison is fair, and whether a run needs attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbm.methods import is_central
from fedbm.report.advice import advise
from fedbm.report.document import Finding
from fedbm.report.grouping import AVERAGE, Group, find_varying, format_label, settings
from fedbm.runs.run_view import partition_digest

KEEP_OPTIMIZER = "train.keep_optimizer"  # central training keeps its optimiser's state by definition


def check_comparison(group: Group) -> list[Finding]:
    """Return the result of every check that applies to the group."""
    checks = (_finished(group), _seeds(group), _partitions(group), _protocol(group), _environment(group))
    return [found for found in (*checks, _updates(group)) if found is not None]


def find_inequalities(group: Group) -> tuple[str, ...]:
    """Return in what the finished rows differ apart from the method: in settings, or in samples at equal seeds."""
    finished = replace(group, unfinished=())
    checks = (_protocol(finished), _partitions(finished))
    return tuple(found.sentence for found in checks if found is not None and not found.holds)


def collect_advice(group: Group) -> list[Finding]:
    """Return each kind of advice once, with the runs that need it."""
    runs: dict[str, list[str]] = {}  # action → evidence, by run
    for run in group.runs:
        for one in advise(run):
            name = "All rows" if one.shared else format_label(run.label, run.method)
            runs.setdefault(one.action, []).append(f"{name}, seed {run.seed}: {one.evidence}")
    found = {action: tuple(dict.fromkeys(items)) for action, items in runs.items()}
    return [
        Finding(False, action, items) if len(items) > 1 else Finding(False, f"{items[0]}. {action}")
        for action, items in found.items()
    ]


def _finished(group: Group) -> Finding:
    if not group.unfinished and not group.missing:
        return Finding(True, "Every run finished.")
    here = (f"{format_label(run.label, run.method)}, seed {run.seed}: {run.state}" for run in group.unfinished)
    parts = [*here, *group.missing]
    return Finding(False, f"Not finished, and not part of any number on this page: {'; '.join(parts)}.")


def _seeds(group: Group) -> Finding | None:
    """Check that rows have the same seeds; a seed decides the partition and the initial weights."""
    if not group.rows:
        return None
    if different := find_different_seeds(group):
        return different
    seeds = [run.seed for run in group.rows[0].runs]
    if len(seeds) == 1:
        return Finding(False, f"One seed ({seeds[0]}) shows no spread: another seed may give another result.")
    some = " with a result" if group.missing or group.unfinished else ""
    return Finding(True, f"Every method{some} ran with the seeds {_joined(seeds)}.")


def find_different_seeds(group: Group) -> Finding | None:
    """Return which seeds the rows have, if they differ."""
    names: dict[tuple[int, ...], list[str]] = {}
    for row in group.rows:
        names.setdefault(tuple(run.seed for run in row.runs), []).append(row.name)
    parts = (f"{_joined(seeds)} ({_joined(who)})" for seeds, who in names.items())
    return Finding(False, f"The methods ran with different seeds: {'; '.join(parts)}.") if len(names) > 1 else None


def _partitions(group: Group) -> Finding | None:
    """Check that clients have the same samples at each seed; central training has no clients."""
    by_seed: dict[int, list[str]] = {}
    for run in group.runs:
        if run.client_partition is not None and not is_central(run.method):
            by_seed.setdefault(run.seed, []).append(partition_digest(run.client_partition))
    unequal = [seed for seed, digests in sorted(by_seed.items()) if len(set(digests)) > 1]
    if unequal:
        return Finding(False, f"Clients have different samples in runs of the same seed ({_joined(unequal)}).")
    if len(group.rows) < 2 or not by_seed:
        return None
    return Finding(True, "At each seed, every method’s clients have the same samples.")


def _protocol(group: Group) -> Finding | None:
    """Check that data, model and training are the same; language and method options are what is compared."""
    if len(group.runs) < 2:
        return None
    each = [
        {**settings(run, "data", "model", "train"), "own body": run.config.get("own", {}).get("body")}
        for run in group.runs
    ]
    keys = [key for key in find_varying(each) if key != AVERAGE]
    kept = {one.get(KEEP_OPTIMIZER) for run, one in zip(group.runs, each, strict=True) if not is_central(run.method)}
    if KEEP_OPTIMIZER in keys and len(kept) < 2:
        keys.remove(KEEP_OPTIMIZER)
    if not keys:
        return Finding(True, "Data, model and training settings are the same in all runs.")
    return Finding(False, f"The runs differ in more than the method: {_values(keys, each, 'unset')}.")


def _environment(group: Group) -> Finding | None:
    known = [run.environment for run in group.runs if run.environment is not None]
    if len(known) < 2:
        return None
    each = [{key: str(one.get(key, "unknown")) for key in ("fedbm", "torch", "device")} for one in known]
    if keys := find_varying(each):
        return Finding(False, f"The runs were computed with different {_values(keys, each)}.")
    version, torch, device = each[0].values()
    return Finding(True, f"All runs used FedBM {version}, torch {torch}, device {device}.")


def _updates(group: Group) -> Finding | None:
    if not any(run.rounds for run in group.runs):
        return None
    dropped = Counter(
        format_label(run.label, run.method) for run in group.runs for record in run.rounds for _ in record.dropped or ()
    )
    if not dropped:
        return Finding(True, "No client’s update was left out of an average.")
    parts = (f"{count} of {name}" for name, count in dropped.items())
    return Finding(False, f"Updates of clients left out of the average, over all rounds: {'; '.join(parts)}.")


def _values(keys: Iterable[str], each: Sequence[Mapping[str, Any]], missing: str = "") -> str:
    """Return 'train.lr (0.01, 0.1); …'."""
    return "; ".join(f"{key} ({_joined(dict.fromkeys(str(one.get(key, missing)) for one in each))})" for key in keys)


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
