"""Describe the privacy loss that a run's nodes reported; docs/federation-protocol.md explains what ε bounds."""

from __future__ import annotations

import math

from fedbm.runs.run_view import RunView


def client_losses(run: RunView) -> list[str]:
    """Return a sentence for each client that added noise."""
    found = run.summary.privacy if run.summary else None
    if not found:
        return []
    return [
        f"client {client}: ε {_format(one.epsilon)} in this run, ε {_format(one.epsilon_all_runs)} over all runs on "
        f"its data, at δ = {found.delta:g}"
        for client, one in sorted(found.clients.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def _format(epsilon: float | None) -> str:
    """Return ε, rounded up to two decimals.

    >>> _format(4.7212), _format(None)
    ('≤ 4.73', 'without a finite bound')
    """
    return "without a finite bound" if epsilon is None else f"≤ {math.ceil(100 * epsilon) / 100:g}"
