"""The JSON files of a run folder, and the record of a run that a repository keeps; docs/records.md describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fedbm.data.partition import SETTINGS, SHIFT
from fedbm.engine.round_record import SCORE, Index, RoundNumber, Score, Scores, Seconds, Traffic
from fedbm.utils.schema import PLAIN, SCALAR, TEXT, Schema, each, keys, number, or_null, whole
from fedbm.utils.typed_json import JsonRecord

SIDES = ("val", "test", "averaged.val", "averaged.test")  # the scores that curves contain
PHASES = ("train", "aggregate", "generator", "evaluate", "checkpoint", "total")

Classes = Annotated[tuple[str, ...], each(TEXT, "classes", least=1)]
Points = Annotated[tuple[tuple[float, float], ...], each(each(number(-1e30, 1e30), 2), "images")]
Matrix = Annotated[tuple[tuple[int, ...], ...], each(each(whole(0, 2**53), "classes"), "classes")]


@dataclass(frozen=True, eq=False)
class ScoredRound(JsonRecord):
    """A round and its test scores."""

    round: RoundNumber
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

    epsilon: Annotated[float, number(0)] | None
    epsilon_all_runs: Annotated[float, number(0)] | None
    bound: str = ""  # "none" or "finite", of all runs


@dataclass(frozen=True, eq=False)
class Privacy(JsonRecord):
    """The privacy losses that the clients of a deployment report."""

    delta: Annotated[float, number(0, 1)]
    clients: Mapping[str, PrivacyLoss]


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary(JsonRecord):
    """summary.json: what a finished run is, and its scores."""

    id: str
    label: str  # the method and its options that are not the default
    method: str
    data: str
    seed: Index
    rounds: RoundNumber
    clients: Annotated[int, whole(1)]
    partition: str
    beta: Annotated[float, number(0)] | None
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
    concepts: Annotated[tuple[str, ...], each(TEXT, "classes")] | None
    encoder: str | None
    similarity: Annotated[tuple[tuple[float, ...], ...], each(each(number(), "classes"), "classes")] | None
    confusion: Confusion
    sources: tuple[SourceConfusion, ...] | None = None
    held_out: tuple[SourceConfusion, ...] | None = None  # of clients that never train


@dataclass(frozen=True, eq=False)
class Features(JsonRecord):
    """features.json: test images in two dimensions, and the anchors of the classes among them."""

    classes: Classes
    labels: Annotated[tuple[int, ...], each(whole(0, 2**53), "images")]
    points: Points
    anchors: Annotated[tuple[tuple[float, float], ...], each(each(number(-1e30, 1e30), 2), "classes")] | None


@dataclass(frozen=True, eq=False)
class PartitionSource(JsonRecord):
    """The data set that a partition belongs to."""

    data: str
    checksum: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionRecord(JsonRecord):
    """partition.json, or what a record keeps of it: a digest in place of the samples of each client."""

    kind: str
    settings: Annotated[Mapping[str, Any], SETTINGS]
    classes: Classes
    counts: Annotated[tuple[tuple[int, ...], ...], each(each(whole(0, 2**53), "classes"), "clients", least=1)]
    moved: tuple[Any, ...] = ()
    clients: Annotated[tuple[Any, ...], each(PLAIN, "clients")] | None = None
    digest: str = ""
    of: PartitionSource | None = None
    held_out: tuple[Any, ...] | None = None  # samples of each held-out client
    shift: Annotated[Mapping[str, Any], SHIFT] | None = None  # the change of each client's images


def _config_schema(others: Schema | None) -> Schema:
    """Check the settings that every run has; all other settings must match *others*."""
    return keys(
        {
            "data": keys({"name": TEXT, "partition": TEXT, "beta": number(), "clients": whole()}, others),
            "method": keys({"name": TEXT}, others),
            "train": keys({"rounds": whole(), "seed": whole(), "keep_optimizer?": SCALAR}, others),
        },
        keys({}, others),
    )


CONFIG = _config_schema(None)  # TOML also has dates and infinities
CURVES = keys(
    {
        "round": each(whole(1), "rounds", least=1),
        **dict.fromkeys(
            (*(f"{side}.{score}?" for side in SIDES for score in ("accuracy", "f1")), "personal?"),
            each(or_null(SCORE), "rounds"),
        ),
        **dict.fromkeys(("bytes.sent?", "bytes.received?", "dropped?"), each(whole(0, 2**53), "rounds")),
        **{f"seconds.{phase}?": each(number(0, 1e12), "rounds") for phase in PHASES},
    },
    each(or_null(number()), "rounds"),
)
ENVIRONMENT = keys({"command?": TEXT}, PLAIN)


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord(JsonRecord):
    """The record of a finished run: all that a report needs, without tensors."""

    run: str
    config: Annotated[Mapping[str, Mapping[str, Any]], _config_schema(PLAIN)]
    environment: Annotated[Mapping[str, Any], ENVIRONMENT] | None
    summary: Summary
    last_quarter: Scores | None = None
    averaged_last_quarter: Scores | None = None
    partition: PartitionRecord | None
    checksum: str  # of the data set
    details: Details | None
    features: Features | None
    generated_rounds: tuple[RoundNumber, ...]
    curves: Annotated[Mapping[str, tuple[Any, ...]], CURVES]  # columns over the kept rounds
