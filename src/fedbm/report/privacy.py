"""The privacy loss that a run's nodes reported, in sentences; docs/federation-protocol.md says what ε bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedbm.report.grouping import Group
from fedbm.runs.reader import RunView


def client_losses(run: RunView) -> list[str]:
    """Return a sentence for each client that added noise."""
    found = run.summary.privacy if run.summary else None
    if not found:
        return []
    return [
        f"client {client}: ε {_format([one.epsilon])} in this run, ε {_format([one.epsilon_all_runs])} over all "
        f"runs on its data, at δ = {found.delta:g}"
        for client, one in sorted(found.clients.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def largest_losses(group: Group) -> list[str]:
    """Return a sentence for each finished run that added noise, with the largest ε of its clients."""
    sentences = []
    for row in group.rows:
        for run in row.runs:
            if run.summary and (found := run.summary.privacy):
                losses = found.clients.values()
                own = _format([loss.epsilon for loss in losses])
                total = _format([loss.epsilon_all_runs for loss in losses])
                sentences.append(
                    f"{row.name}, seed {run.seed}: ε {own} in this run, ε {total} over all runs on a client’s data, at "
                    f"δ = {found.delta:g}; the largest that its nodes report"
                )
    return sentences


def _format(values: Iterable[float | None]) -> str:
    """Return the largest ε, rounded up to two decimals.

    >>> _format([4.7212, 4.0]), _format([4.7, None])
    ('≤ 4.73', 'without a finite bound')
    """
    known = list(values)
    if None in known:
        return "without a finite bound"
    return f"≤ {math.ceil(100 * max((value for value in known if value is not None), default=0.0)) / 100:g}"
