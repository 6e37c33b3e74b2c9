"""Which client holds which training samples.

    Dirichlet:  p_k ~ Dir(β·1_N) for each class k; its shuffled samples are cut at the cumulative sums of p_k

Small β: each class sits with few clients. Large β: every client sees the global mix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbm.data.store import Dataset
from fedbm.errors import FedBMError
from fedbm.files import digest_of, read_json
from fedbm.seeds import numpy_rng

FORMAT = 1
DRAWS = 100

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


def dirichlet(
    labels: NDArray[np.int64],
    train: Indices,
    clients: int,
    beta: float,
    seed: int,
    min_size: int = 2,
    strict: bool = False,
) -> Partition:
    """Cut every class by its own Dir(β) draw, so that each client has at least *min_size* samples.

    Up to 100 draws are tried. If none will do, the last one is kept and what is missing is taken from the
    largest client, each move on record; *strict* refuses instead.
    """
    _check_sizes(len(train), clients, min_size)
    if not (math.isfinite(beta) and beta >= 1e-6):
        raise FedBMError(f"beta is {beta}, it must be a finite number from 0.000001 up")
    settings = {"clients": clients, "beta": beta, "seed": seed, "min_size": min_size}
    for attempt in range(DRAWS):
        rng = numpy_rng(seed, "partition", attempt)
        held: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(labels[train]):
            members = rng.permutation(train[labels[train] == label])
            cuts = np.rint(np.cumsum(_simplex_point(rng, beta, clients))[:-1] * len(members)).astype(np.int64)
            for client, part in zip(held, np.split(members, cuts), strict=True):
                client.extend(part.tolist())
        if min(map(len, held)) >= min_size:
            return Partition(in_order(held), "dirichlet", settings)
    if strict:
        raise FedBMError(
            f"in {DRAWS} draws of beta {beta} some of the {clients} clients always had fewer than {min_size} "
            "samples: raise beta, have fewer clients, or let samples be moved (strict off)"
        )
    moved = _fill(held, min_size, numpy_rng(seed, "partition", "moves"))
    return Partition(in_order(held), "dirichlet", settings, tuple(moved))


def iid(train: Indices, clients: int, seed: int, min_size: int = 2) -> Partition:
    """Shuffled and dealt in equal shares (sizes differ by one at most)."""
    _check_sizes(len(train), clients, min_size)
    parts = np.array_split(numpy_rng(seed, "partition").permutation(train), clients)
    settings = {"clients": clients, "seed": seed, "min_size": min_size}
    return Partition(in_order([part.tolist() for part in parts]), "iid", settings)


def from_json(value: Any, where: str = "the partition") -> Partition:
    """The inverse of Partition.to_json; only "format" and "clients" must be there."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise FedBMError(f'{where} is no partition of format {FORMAT}: it must hold "format": {FORMAT}')
    clients = value.get("clients")
    if not isinstance(clients, list) or not clients or not all(_sample_numbers(client) for client in clients):
        raise FedBMError(f'{where} must hold "clients": a list with one list of sample numbers per client')
    for number, client in enumerate(clients):
        if not client:
            raise FedBMError(f"client {number} of {where} has no samples: give it some or remove it")
    kind, settings = value.get("kind", "file"), value.get("settings", {})
    if not isinstance(kind, str) or not isinstance(settings, dict):
        raise FedBMError(f'"kind" of {where} must be a text and "settings" an object')
    try:
        moved = tuple(Move(**move) for move in value.get("moved", []))
    except TypeError as error:
        raise FedBMError(f'"moved" of {where} must list objects with source, target and sample') from error
    return Partition(in_order(clients), kind, settings, moved)


def from_file(path: Path, dataset: Dataset) -> Partition:
    """Read a partition and make sure it is one of *dataset*: every training sample at exactly one client."""
    value = read_json(path)
    partition = from_json(value, str(path))
    held = np.concatenate(partition.clients)
    outside = held[held >= len(dataset.labels)]
    if len(outside):
        raise FedBMError(f"{path} names sample {outside[0]}, {dataset.name} has 0 to {len(dataset.labels) - 1}")
    foreign = held[dataset.split[held] != 0]
    if len(foreign):
        raise FedBMError(f"{path} gives sample {foreign[0]} to a client, which is not a training sample")
    samples, times = np.unique(held, return_counts=True)
    if (times > 1).any():
        raise FedBMError(f"{path} names sample {samples[times > 1][0]} {times.max()} times, it can be held once")
    missing = len(dataset.indices("train")) - len(samples)
    if missing:
        raise FedBMError(f"{path} leaves out {missing} of the training samples of {dataset.name}")
    actual = partition.to_json(dataset.labels, dataset.classes)
    for key in ("classes", "counts"):
        if value.get(key, actual[key]) != actual[key]:
            raise FedBMError(f"{path} was made for other data: its {key} are not those of {dataset.name}")
    return partition


def heterogeneity(counts: NDArray[np.int64]) -> dict[str, float]:
    """How unlike each other the clients of an [N, K] table of counts are.

    *total_variation*: mean over clients of ½ Σ_k |p_ik − p_k|, 0 where all have the global mix.
    *effective_clients*: 1 / Σ w_i², N where all are of one size. *single_class*: clients with one class only.
    """
    sizes = counts.sum(axis=1)
    mixes = counts / sizes[:, None]
    whole = counts.sum(axis=0) / sizes.sum()
    weights = sizes / sizes.sum()
    return {
        "total_variation": float(0.5 * np.abs(mixes - whole).sum(axis=1).mean()),
        "effective_clients": float(1 / (weights**2).sum()),
        "single_class": int(((counts > 0).sum(axis=1) == 1).sum()),
    }


def _simplex_point(rng: np.random.Generator, beta: float, clients: int) -> NDArray[np.float64]:
    """One draw of Dir(β), as exp(log Γ-variates) with log G(β) = log G(β+1) + log U / β.

    In logarithms no β is too small; variates drawn directly would all underflow to 0, and 0/0 is no share.
    """
    logs = np.log(rng.standard_gamma(beta + 1, clients)) - rng.standard_exponential(clients) / beta
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum())


def _fill(held: list[list[int]], min_size: int, rng: np.random.Generator) -> list[Move]:
    """Bring every client up to *min_size*, one random sample of the then largest client at a time."""
    moved = []
    for target, client in enumerate(held):
        while len(client) < min_size:
            source = max(range(len(held)), key=lambda number: len(held[number]))
            sample = held[source].pop(int(rng.integers(len(held[source]))))
            client.append(sample)
            moved.append(Move(source, target, sample))
    return moved


def _check_sizes(samples: int, clients: int, min_size: int) -> None:
    if clients < 1 or min_size < 1:
        raise FedBMError(f"{clients} clients with at least {min_size} samples each: both must be 1 or more")
    if clients * min_size > samples:
        raise FedBMError(
            f"{samples} training samples are too few for {clients} clients with at least {min_size} each: "
            f"have at most {samples // min_size} clients"
        )


def in_order(held: Sequence[Sequence[int]]) -> tuple[Indices, ...]:
    return tuple(np.sort(np.array(client, dtype=np.int64)) for client in held)


def _sample_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
