"""Describe the privacy loss that a run's nodes reported; docs/federation-protocol.md explains what ε bounds."""

from __future__ import annotations

import math
from collections.abc import Collection

from fedbm.report.grouping import Group
from fedbm.runs.run_file_types import PrivacyLoss
from fedbm.runs.run_view import RunView


def client_losses(run: RunView) -> list[str]:
    """Return a sentence for each client that added noise."""
    found = run.summary.privacy if run.summary else None
    if not found:
        return []
    clients = sorted(found.clients.items(), key=lambda item: (len(item[0]), item[0]))
    return [f"client {client}: {_sentence([one], 'its', found.delta)}" for client, one in clients]


def largest_losses(group: Group) -> list[str]:
    """Return a sentence for each finished run that added noise, with the largest ε of its clients."""
    return [
        f"{row.name}, seed {run.seed}: {_sentence(found.clients.values(), 'a client’s', found.delta)}; the "
        "largest that its nodes report"
        for row in group.rows
        for run in row.runs
        if run.summary and (found := run.summary.privacy)
    ]


def _sentence(losses: Collection[PrivacyLoss], data_of: str, delta: float) -> str:
    own, total = _format([one.epsilon for one in losses]), _format([one.epsilon_all_runs for one in losses])
    return f"ε {own} in this run, ε {total} over all runs on {data_of} data, at δ = {delta:g}"


def _format(values: list[float | None]) -> str:
    """Return the largest ε, rounded up to two decimals.

    >>> _format([4.7212, 4.0]), _format([4.7, None])
    ('≤ 4.73', 'without a finite bound')
    """
    if None in values:
        return "without a finite bound"
    return f"≤ {math.ceil(100 * max((value for value in values if value is not None), default=0.0)) / 100:g}"
