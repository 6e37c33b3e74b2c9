"""What a run records of each round, and the evaluations that its checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fedbm.utils.json_records import Index, JsonRecord, Keys, Positive, Range
from fedbm.utils.metrics import NAMES

Count = Annotated[int, Range(0, 2**53)]
Score = Annotated[float, Range(0, 1 + 1e-9)]  # a weighted mean of ones may round to a little more
Seconds = Annotated[float, Range(0, 1e12)]
Scores = Annotated[  # by name, see NAMES
    Mapping[str, Score | None], Keys({name: Score | None if name == "auc" else Score for name in NAMES})
]
LossTerms = Mapping[str, float | None]  # by name; None if a term is not finite


@dataclass(frozen=True, eq=False)
class ClientRound(JsonRecord):
    """One client's part in a round."""

    client: Index
    n: Count  # training samples
    loss: LossTerms
    seconds: Seconds


@dataclass(frozen=True, eq=False)
class Dropped(JsonRecord):
    """A selected client without a usable update, and why."""

    client: Index
    reason: str


@dataclass(frozen=True, eq=False)
class PersonalScores(JsonRecord):
    """Accuracy of the clients' own models: the mean, and by client."""

    accuracy: Score
    clients: Mapping[str, Score] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AveragedScores(JsonRecord):
    """Scores of the averaged model."""

    val: Scores
    test: Scores
    scored: tuple[Index, ...] | None = None


@dataclass(frozen=True, eq=False)
class Traffic(JsonRecord):
    """Bytes from the server to clients, and from clients to the server."""

    sent: Count = 0
    received: Count = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent + other.sent, self.received + other.received)


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord(JsonRecord):
    """A line of rounds.jsonl."""

    round: Positive
    lr: float | None = None
    selected: tuple[Index, ...] = ()
    loss: LossTerms  # means over clients, weighted by their samples
    clients: tuple[ClientRound, ...] = ()
    dropped: tuple[Dropped, ...]
    generator: LossTerms | None  # None if the server trains nothing
    val: Scores | None  # None if the round was not evaluated
    test: Scores | None
    personal: PersonalScores | None
    scored: tuple[Index, ...] | None = None  # the clients that scored the model, if the server has no images
    bytes: Traffic
    notes: tuple[str, ...] = ()
    seconds: Annotated[Mapping[str, Seconds], Keys({"total": Seconds})]  # by phase
    averaged: AveragedScores | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelScores(JsonRecord):
    """The scores of one model, and the confusion matrix of its test images, also by source if they have sources."""

    val: Scores
    test: Scores
    confusion: tuple[tuple[Count, ...], ...]
    by_source: tuple[tuple[tuple[Count, ...], ...], ...] | None = None
    held_out: tuple[tuple[tuple[Count, ...], ...], ...] | None = None  # confusion matrices of held-out clients
    personal: PersonalScores | None = None
    scored: tuple[Index, ...] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation(ModelScores):
    """The scores of a round's global model and, if there is one, of the averaged model."""

    round: Positive
    averaged: ModelScores | None = None


def selection_score(val: Scores) -> float:
    """Return validation accuracy + macro-F1. The round with the highest is chosen, the earliest on ties."""
    accuracy, f1 = val["accuracy"], val["f1"]
    assert accuracy is not None
    assert f1 is not None
    return accuracy + f1


def is_better(new: Evaluation, best: Evaluation | None) -> bool:
    """Return whether a new evaluation is better on validation than the best so far."""
    return best is None or selection_score(new.val) > selection_score(best.val)
