"""Choose the values of some axes by their validation score. The test set has no influence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedbm.engine.round_record import selection_score
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import cells
from fedbm.runs.run_view import RunView
from fedbm.utils.statistics import Spread, spread_or_none


@dataclass(frozen=True)
class Candidate:
    """One combination of the axes' values for a row."""

    row: str
    at: Mapping[str, Any]
    score: Spread | None  # validation accuracy + macro-F1 at the best round, over seeds; None if a seed is missing
    chosen: bool = False


def validation_score(run: RunView) -> float | None:
    """Return accuracy + macro-F1 on the validation set at the best round, which has the highest such sum."""
    best = run.summary.best.round if run.summary else None
    found = next((record.val for record in run.rounds if record.round == best), None)
    return selection_score(found) if found else None


def search(outcome: Outcome) -> list[Candidate]:
    """Return every combination with its score; in each group the best is chosen, the first on ties.

    Rows are groups of their own unless "row" is among the searched axes; then they compete with each other. Nothing
    is chosen while a combination has a missing seed, because it might be the best.
    """
    groups: dict[str, list[Candidate]] = {}
    for at, row in product(cells(outcome.axes), outcome.rows):
        scores = [validation_score(result.run) if result.run else None for result in outcome.cell(row, at)]
        rest = [value for axis, value in at.items() if axis not in outcome.search]
        group = json.dumps(["" if "row" in outcome.search else row, rest])
        groups.setdefault(group, []).append(Candidate(row, at, spread_or_none(scores)))
    return [candidate for group in groups.values() for candidate in _choose(group)]


def _choose(group: list[Candidate]) -> list[Candidate]:
    means = [candidate.score.mean for candidate in group if candidate.score is not None]
    if len(means) < len(group):
        return group
    best = means.index(max(means))
    return [replace(candidate, chosen=place == best) for place, candidate in enumerate(group)]
