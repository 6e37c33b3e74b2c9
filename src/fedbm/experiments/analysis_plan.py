"""What an experiment's file states of its analysis before there are results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words

MOMENTS = {"chosen": "best", "averaged last": "averaged"}  # endpoint → which of RunView.scores()


@dataclass(frozen=True)
class AnalysisPlan:
    """How results are to be compared."""

    contrasts: tuple[tuple[str, str], ...]  # pairs of rows: first − second
    endpoint: str  # a key of MOMENTS
    confirmatory: bool  # contrasts are tested, and scores are withheld until all runs are on record
    seeds: tuple[int, ...]

    @property
    def moment(self) -> str:
        return MOMENTS[self.endpoint]


def read_analysis(values: Mapping[str, Any], seeds: tuple[int, ...], where: str) -> AnalysisPlan | None:
    """Return what the keys of a file, *values*, state of the analysis; None if they name no contrasts.

    Raises:
        FedBMError: If a key has a wrong value, or one is missing that another needs.
    """
    contrasts, confirmatory = _contrasts(values, where), values.get("confirmatory", False)
    if not isinstance(confirmatory, bool):
        raise FedBMError(f"{where}: confirmatory must be true or false")
    if confirmatory and not (contrasts and "seeds" in values and "search" not in values):
        raise FedBMError(f"{where}: a confirmatory experiment states its seeds and contrasts, and has no [search]")
    endpoint = choice(values, "endpoint", tuple(MOMENTS), where)
    if "endpoint" in values and not contrasts:
        raise FedBMError(f"{where}: an endpoint is the score of contrasts, and there are none")
    return AnalysisPlan(contrasts, endpoint, confirmatory, seeds) if contrasts else None


def choice(values: Mapping[str, Any], key: str, choices: Sequence[str], where: str) -> str:
    """Return the value of *key*, by default the first of *choices*."""
    found = values.get(key, choices[0])
    if found not in choices:
        quoted = join_words([f'"{one}"' for one in choices])
        raise FedBMError(f'{where}: {key} must be {quoted}, not "{found}"{did_you_mean(str(found), choices)}')
    return str(found)


def _contrasts(values: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    found = values.get("contrasts", [])
    pairs = isinstance(found, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in found
    )
    if not pairs or any(first == second for first, second in found) or len({*map(tuple, found)}) < len(found):
        raise FedBMError(f'{where}: contrasts must be a list of different pairs of rows, such as [["FedBM", "FedAvg"]]')
    return tuple((first, second) for first, second in found)
