"""The JSON files of a run folder, and the record of a run that a repository keeps; docs/records.md describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fedbm.data.partition import Settings, Shift
from fedbm.engine.round_record import Count, Score, Scores, Seconds, Traffic
from fedbm.utils.json_records import Index, JsonRecord, Keys, Length, NonNegative, Positive, Range, Scalar

SIDES = ("val", "test", "averaged.val", "averaged.test")  # the scores that curves contain
PHASES = ("train", "aggregate", "generator", "evaluate", "checkpoint", "total")

Classes = Annotated[tuple[str, ...], Length("classes", least=1)]
Coordinate = Annotated[float, Range(-1e30, 1e30)]
Points = tuple[tuple[Coordinate, Coordinate], ...]
Counts = Annotated[tuple[Count, ...], Length("classes")]
Matrix = Annotated[tuple[Counts, ...], Length("classes")]


@dataclass(frozen=True, eq=False)
class ScoredRound(JsonRecord):
    """A round and its test scores."""

    round: Positive
    accuracy: Score
    f1: Score
    recall: Score
    precision: Score
    auc: Score | None


@dataclass(frozen=True, eq=False)
class PersonalSummary(JsonRecord):
    """Mean accuracy of the clients' own models in the chosen and in the last round."""

    best: Score | None
    last: Score | None


@dataclass(frozen=True, eq=False)
class PrivacyLoss(JsonRecord):
    """ε of one client; None means no finite bound."""

    epsilon: NonNegative | None
    epsilon_all_runs: NonNegative | None
    bound: str = ""  # "none" or "finite", of all runs


@dataclass(frozen=True, eq=False)
class Privacy(JsonRecord):
    """The privacy losses that the clients of a deployment report."""

    delta: Annotated[float, Range(0, 1)]
    clients: Mapping[str, PrivacyLoss]


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary(JsonRecord):
    """summary.json: what a finished run is, and its scores."""

    id: str
    label: str  # the method and its options that are not the default
    method: str
    data: str
    seed: Index
    rounds: Positive
    clients: Positive
    partition: str
    beta: NonNegative | None
    best: ScoredRound  # the round chosen on validation
    last: ScoredRound
    averaged: ScoredRound | None = None  # the averaged model after the last round
    personal: PersonalSummary | None = None
    bytes: Traffic
    seconds: Seconds
    privacy: Privacy | None = None


@dataclass(frozen=True, eq=False)
class Confusion(JsonRecord):
    """Confusion matrices of the test images; rows are the truth."""

    best: Matrix
    last: Matrix
    averaged: Matrix | None = None


@dataclass(frozen=True, eq=False)
class SourceConfusion(JsonRecord):
    """Confusion matrices of a part of the test images: a site, a value of the clients' column, or a held-out client."""

    name: str
    best: Matrix
    last: Matrix
    averaged: Matrix | None = None
    personal: Score | None = None  # accuracy of the site's own model on these images, at the last round


@dataclass(frozen=True, eq=False)
class Details(JsonRecord):
    """details.json: classes, their texts, and confusion matrices."""

    classes: Classes
    concepts: Annotated[tuple[str, ...], Length("classes")] | None
    encoder: str | None
    similarity: Annotated[tuple[Annotated[tuple[float, ...], Length("classes")], ...], Length("classes")] | None
    confusion: Confusion
    sources: tuple[SourceConfusion, ...] | None = None
    held_out: tuple[SourceConfusion, ...] | None = None  # of clients that never train


@dataclass(frozen=True, eq=False)
class Features(JsonRecord):
    """features.json: test images in two dimensions, and the anchors of the classes among them."""

    classes: Classes
    labels: Annotated[tuple[Count, ...], Length("images")]
    points: Annotated[Points, Length("images")]
    anchors: Annotated[Points, Length("classes")] | None


@dataclass(frozen=True, eq=False)
class PartitionSource(JsonRecord):
    """The data set that a partition belongs to."""

    data: str
    checksum: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionRecord(JsonRecord):
    """partition.json, or what a record keeps of it: a digest in place of the samples of each client."""

    kind: str
    settings: Settings
    classes: Classes
    counts: Annotated[tuple[Counts, ...], Length("clients", least=1)]
    moved: tuple[Any, ...] = ()
    clients: Annotated[tuple[Any, ...], Length("clients")] | None = None
    digest: str = ""
    of: PartitionSource | None = None
    held_out: tuple[Any, ...] | None = None  # samples of each held-out client
    shift: Shift | None = None  # the change of each client's images


SETTINGS = {  # that every run has
    "data": {"name": str, "partition": str, "beta": float, "clients": int},
    "method": {"name": str},
    "train": {"rounds": int, "seed": int, "keep_optimizer?": Annotated[Any, Scalar]},
}
ConfigFile = Annotated[
    Mapping[str, Mapping[str, Any]],
    Keys({name: Annotated[Mapping[str, Any], Keys(types)] for name, types in SETTINGS.items()}),
]
FEDERATION_FILE: Any = Keys({"options": Keys({"nodes": Positive})})  # what is read of it
Environment = Annotated[Mapping[str, Any], Keys({"command?": str})]
Curves = Annotated[
    Mapping[str, Annotated[tuple[float | None, ...], Length("rounds")]],
    Keys(
        {
            "round": Annotated[tuple[Positive, ...], Length("rounds", least=1)],
            **dict.fromkeys(
                (*(f"{side}.{score}?" for side in SIDES for score in ("accuracy", "f1")), "personal?"),
                Annotated[tuple[Score | None, ...], Length("rounds")],
            ),
            **dict.fromkeys(
                ("bytes.sent?", "bytes.received?", "dropped?"), Annotated[tuple[Count, ...], Length("rounds")]
            ),
            **{f"seconds.{phase}?": Annotated[tuple[Seconds, ...], Length("rounds")] for phase in PHASES},
        }
    ),
]


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord(JsonRecord):
    """The record of a finished run: all that a report needs, without tensors."""

    run: str
    config: ConfigFile
    environment: Environment | None
    summary: Summary
    last_quarter: Scores | None = None
    averaged_last_quarter: Scores | None = None
    partition: PartitionRecord | None
    checksum: str  # of the data set
    details: Details | None
    features: Features | None
    generated_rounds: tuple[Positive, ...]
    curves: Curves  # columns over the kept rounds
