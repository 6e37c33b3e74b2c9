"""Which client holds which training samples: the result of a partitioner (fedbm.data.partitioners)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.errors import FedBMError
from fedbm.utils.io import digest_of, read_json
from fedbm.utils.schema import PLAIN, check, keys, number, or_null

FORMAT = 1
SETTINGS = keys({"beta?": or_null(number(0))}, PLAIN)

Indices = NDArray[np.int64]


class Move(NamedTuple):
    """A sample taken from one client for another that had too few."""

    source: int
    target: int
    sample: int


@dataclass(frozen=True, eq=False)
class Partition:
    clients: tuple[Indices, ...]  # sample numbers in the data set, each client's in ascending order
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    moved: tuple[Move, ...] = ()

    @property
    def digest(self) -> str:
        """The identity of who holds what, however it came about."""
        return digest_of({"clients": [client.tolist() for client in self.clients]})

    def counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """[N, K]: how many samples of each class each client holds."""
        return np.stack([np.bincount(labels[client], minlength=classes) for client in self.clients])

    def to_json(self, labels: NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "settings": dict(self.settings),
            "clients": [client.tolist() for client in self.clients],
            "counts": self.counts(labels, len(classes)).tolist(),
            "classes": list(classes),
            "moved": [move._asdict() for move in self.moved],
        }


def parse_partition(value: Any, where: str = "the partition") -> Partition:
    """The inverse of Partition.to_json; only "format" and "clients" must be there."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise FedBMError(f'{where} is no partition of format {FORMAT}: it must hold "format": {FORMAT}')
    clients = value.get("clients")
    if not isinstance(clients, list) or not clients or not all(_sample_numbers(client) for client in clients):
        raise FedBMError(f'{where} must hold "clients": a list with one list of sample numbers per client')
    kind, settings = value.get("kind", "file"), value.get("settings", {})
    if not isinstance(kind, str) or not isinstance(settings, dict):
        raise FedBMError(f'"kind" of {where} must be a text and "settings" an object')
    try:
        moved = tuple(Move(**move) for move in value.get("moved", []))
    except TypeError as error:
        raise FedBMError(f'"moved" of {where} must list objects with source, target and sample') from error
    return Partition(sort_samples(clients), kind, settings, moved)


def load_partition(path: Path, dataset: Dataset) -> Partition:
    """Read a partition and make sure it is one of *dataset*: every training sample at exactly one client.

    Where samples were moved by hand, so that the counts in the file are not those of its clients, what the file says of
    how they were dealt is no longer true and is dropped.
    """
    value = read_json(path)
    partition = parse_partition(value, str(path))
    check_partition(partition, dataset, str(path))
    missing = len(dataset.indices("train")) - sum(map(len, partition.clients))
    if missing:
        raise FedBMError(f"{path} leaves out {missing} of the training samples of {dataset.name}")
    actual = partition.to_json(dataset.labels, dataset.classes)
    if value.get("classes", actual["classes"]) != actual["classes"]:
        raise FedBMError(f"{path} was made for other data: its classes are not those of {dataset.name}")
    edited = value.get("counts", actual["counts"]) != actual["counts"]
    return Partition(partition.clients, "file") if edited else partition


def check_partition(partition: Partition, dataset: Dataset, where: str) -> None:
    """Make sure that clients hold training samples of *dataset* and nothing else, each of them once.

    What it says of how they were dealt must be what a run can write down.
    """
    check(dict(partition.settings), SETTINGS, f"settings of {where}")
    if not partition.clients:
        raise FedBMError(f"{where} has no client")
    for place, client in enumerate(partition.clients):
        if not len(client):
            raise FedBMError(f"client {place} of {where} has no samples: give it some or remove it")
    held = np.concatenate(partition.clients)
    outside = held[(held < 0) | (held >= len(dataset.labels))]
    if len(outside):
        raise FedBMError(f"{where} names sample {outside[0]}, {dataset.name} has 0 to {len(dataset.labels) - 1}")
    foreign = held[dataset.split[held] != 0]
    if len(foreign):
        raise FedBMError(f"{where} gives sample {foreign[0]} to a client, which is not a training sample")
    samples, times = np.unique(held, return_counts=True)
    if (times > 1).any():
        raise FedBMError(f"{where} names sample {samples[times > 1][0]} {times.max()} times, it can be held once")


def heterogeneity(counts: NDArray[np.int64]) -> dict[str, float]:
    """How unlike each other the clients of an [N, K] table of counts are; p_i is a client's label mix, p the whole's.

    *total_variation*: mean over clients of ½ Σ_k |p_ik − p_k|, 0 where all have the global mix.
    *jensen_shannon*: mean over clients of H((p_i + p)/2) − (H(p_i) + H(p))/2 in bits, 0 alike to 1 disjoint.
    *effective_clients*: 1 / Σ w_i², N where all are of one size. *single_class*: clients with one class only.
    """
    sizes = counts.sum(axis=1)
    mixes = counts / sizes[:, None]
    whole = counts.sum(axis=0) / sizes.sum()
    weights = sizes / sizes.sum()
    divergence = _entropy((mixes + whole) / 2) - (_entropy(mixes) + _entropy(whole)) / 2
    return {
        "total_variation": float(0.5 * np.abs(mixes - whole).sum(axis=1).mean()),
        "jensen_shannon": float(divergence.mean()),
        "effective_clients": float(1 / (weights**2).sum()),
        "single_class": int(((counts > 0).sum(axis=1) == 1).sum()),
    }


def _entropy(mixes: NDArray[np.float64]) -> NDArray[np.float64]:
    """H = −Σ p log₂ p over the last axis, with 0 log 0 = 0."""
    return np.asarray(-(mixes * np.log2(np.where(mixes > 0, mixes, 1.0))).sum(axis=-1))


def sort_samples(held: Sequence[Sequence[int]]) -> tuple[Indices, ...]:
    """Each client's samples in ascending order."""
    return tuple(np.sort(np.array(client, dtype=np.int64)) for client in held)


def _sample_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
