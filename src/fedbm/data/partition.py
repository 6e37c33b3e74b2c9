"""The assignment of training samples to clients, and its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbm.data.dataset import Dataset
from fedbm.errors import FedBMError
from fedbm.utils.io import digest_of, read_object
from fedbm.utils.json_records import Index, JsonRecord, Keys, Length, NonNegative, Range, decode
from fedbm.utils.text import format_count, format_range

FORMAT = 1
MAX_DRAWN = 50  # clients in a notebook
MAX_SOURCES = 20  # clinics or scanners; hundreds of writers are not scored one by one
ShiftKind = Literal["brightness", "contrast", "blur", "noise"]
SHIFTS: tuple[ShiftKind, ...] = get_args(ShiftKind)
Number = Annotated[int, Range(0, 2**63 - 1)]  # of a sample or client
Settings = Annotated[Mapping[str, Any], Keys({"beta?": NonNegative | None})]  # of a partitioner

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Move:
    """A sample that was moved to a client with too few samples."""

    source: Number
    target: Number
    sample: Number


@dataclass(frozen=True, eq=False)
class Shift(JsonRecord):
    """A change of the images that differs from client to client; see `fedbm.data.feature_shift`."""

    kind: ShiftKind
    strength: Annotated[float, Range(0, 1)]
    seed: Index
    levels: tuple[Annotated[float, Range(-1, 1)], ...]  # of the clients, then of the held-out clients


@dataclass(frozen=True)
class _File:
    clients: Annotated[tuple[tuple[Number, ...], ...], Length(least=1)]
    kind: str = "file"
    settings: Settings = field(default_factory=dict)
    moved: tuple[Move, ...] = ()
    held_out: tuple[tuple[Number, ...], ...] = ()
    shift: Shift | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Which client has which training samples.

    Attributes:
        clients: sample numbers of each client. They are sorted.
        kind: how the partition was made, such as "dirichlet".
        settings: arguments of the partitioner.
        moved: samples moved to clients that had too few.
        labels: class number of each sample of the data set, if the partitioner knows it; only for notebooks.
        held_out: sample numbers of each client that never trains. A held-out site also has its val and test samples.
        shift: the change of each client's images, or None.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.Partition([numpy.array([0, 3]), numpy.array([1, 2])], "mine")  # simulate() takes it as partition
        Partition(mine: 2 clients with 2 samples)
        >>> labels = numpy.arange(60) % 3
        >>> fedbm.iid(numpy.arange(60), clients=2, seed=0).counts(labels, classes=3)
        array([[ 6, 14, 10],
               [14,  6, 10]])
    """

    clients: Sequence[Ints]
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    moved: tuple[Move, ...] = ()
    labels: Ints | None = None
    held_out: Sequence[Ints] = ()
    shift: Shift | None = None

    def __post_init__(self) -> None:
        try:
            for name in ("clients", "held_out"):
                object.__setattr__(self, name, tuple(map(_sort_samples, getattr(self, name))))
            if not self.clients:
                raise ValueError("no clients")
        except (TypeError, ValueError) as error:  # other types, or lists of different lengths
            raise FedBMError(
                "a partition needs a list of sample numbers for each client, such as [[0, 3], [1, 2]]"
            ) from error

    def __repr__(self) -> str:
        sizes = format_range([len(samples) for samples in self.clients])
        more = f", {len(self.held_out)} held out" if self.held_out else ""
        more += f", {self.shift.kind} shift" if self.shift else ""
        return f"Partition({self.kind}: {format_count(len(self.clients), 'client')} with {sizes} samples{more})"

    def _repr_html_(self) -> str:
        """Draw the first clients × classes, or only the clients if the labels are not known."""
        from fedbm.report.figures.matrices import partition_bubbles  # this package imports data

        most = max(np.concatenate(self.clients).tolist(), default=0)
        labels = np.zeros(1 + most, int) if self.labels is None else self.labels
        names = ["all"] if self.labels is None else [f"class {k}" for k in range(int(labels.max()) + 1)]
        counts, title = self.counts(labels, len(names)), escape(repr(self))
        if len(counts) > MAX_DRAWN:
            title += f", the first {MAX_DRAWN}"
        return f"<p>{title}</p>{partition_bubbles(counts[:MAX_DRAWN], names, repr(self))}"

    @property
    def digest(self) -> str:
        """SHA-256 of the assignment, independent of kind and settings."""
        clients, held_out = ([client.tolist() for client in part] for part in (self.clients, self.held_out))
        return assignment_digest(clients, held_out, self.shift)

    @property
    def held_out_names(self) -> tuple[str, ...]:
        """Names of the held-out clients: values of the column, or numbers that follow the last client's."""
        numbers = range(len(self.clients), len(self.clients) + len(self.held_out))
        return tuple(map(str, self.settings.get("held_out") or numbers))

    def scored_samples(self, dataset: Dataset, subset: str) -> Ints:
        """Return the samples of "val" or "test" that do not belong to a held-out client."""
        return np.setdiff1d(dataset.indices(subset), np.concatenate([np.empty(0, np.int64), *self.held_out]))

    def counts(self, labels: Ints, classes: int) -> Ints:
        """Return the number of samples by client and class, [N,K]."""
        return np.stack([np.bincount(labels[client], minlength=classes) for client in self.clients])

    def to_json(self, labels: Ints, classes: Sequence[str]) -> dict[str, Any]:
        """Return the content of a partition file."""
        shift = {**vars(self.shift), "levels": list(self.shift.levels)} if self.shift else None
        more = {"held_out": [client.tolist() for client in self.held_out], "shift": shift}
        return {
            "format": FORMAT,
            "kind": self.kind,
            "settings": dict(self.settings),
            "clients": [client.tolist() for client in self.clients],
            "counts": self.counts(labels, len(classes)).tolist(),
            "classes": list(classes),
            "moved": [vars(move) for move in self.moved],
            **{name: value for name, value in more.items() if value},
        }


def assignment_digest(clients: Any, held_out: Any = None, shift: Shift | None = None) -> str:
    """Return the SHA-256 of an assignment. Missing parts do not enter it, so that older digests stay valid."""
    more = {"held_out": held_out} if held_out else {}
    return digest_of({"clients": clients, **more, **({"shift": vars(shift)} if shift else {})})


def parse_partition(value: Any, where: str) -> Partition:
    """Return the partition in the content of a file. Only "clients" is required."""
    return Partition(**vars(decode(_File, value, where)))


def load_partition(path: Path, dataset: Dataset) -> Partition:
    """Read a partition file and check that it assigns every training sample to exactly one client.

    If the counts in the file are wrong, because samples were moved by hand, kind and settings are dropped.

    Args:
        path: a JSON file as written by `fedbm data partition`.
        dataset: the data set that the partition belongs to.

    Returns:
        The partition.

    Raises:
        FedBMError: if the file cannot be read or does not match *dataset*.

    Example:
        >>> import fedbm
        >>> run = fedbm.simulate("digits", method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> len(fedbm.load_partition(run.path / "partition.json", fedbm.load("digits", size=16)).clients)
        5
    """
    value = read_object(path, FORMAT)
    partition = parse_partition(value, str(path))
    check_partition(partition, dataset, str(path))
    assigned = np.concatenate([*partition.clients, *partition.held_out])
    if missing := len(np.setdiff1d(dataset.indices("train"), assigned)):
        raise FedBMError(
            f"{path} does not contain {missing} of the training samples of {dataset.name}: assign each to a client"
        )
    actual = partition.to_json(dataset.labels, dataset.classes)
    if value.get("classes", actual["classes"]) != actual["classes"]:
        raise FedBMError(f"{path} was made for other data: it does not have the classes of {dataset.name}")
    edited = value.get("counts", actual["counts"]) != actual["counts"]
    return dataclasses.replace(partition, kind="file", settings={}, moved=()) if edited else partition


def check_partition(partition: Partition, dataset: Dataset, where: str) -> None:
    """Raise FedBMError if a sample is assigned twice, or if a client has other than training samples of *dataset*.

    Held-out clients may also have val and test samples.
    """
    decode(Settings, dict(partition.settings), f"settings of {where}")  # type: ignore[type-abstract]
    everyone = (*partition.clients, *partition.held_out)
    for place, client in enumerate(everyone):
        if not len(client):
            raise FedBMError(f"client {place} of {where} has no samples: give it some or remove it")
    if partition.shift is not None and (levels := len(partition.shift.levels)) != len(everyone):
        raise FedBMError(f"{where} has {levels} levels of its feature shift for {len(everyone)} clients")
    for clients, subset, allowed in (
        (partition.clients, "training ", dataset.indices("train")),
        (partition.held_out, "", np.arange(len(dataset.labels))),
    ):
        if len(foreign := np.setdiff1d(np.concatenate([np.empty(0, np.int64), *clients]), allowed)):
            raise FedBMError(f"{where} assigns sample {foreign[0]}, which is not a {subset}sample of {dataset.name}")
    assigned = np.concatenate(everyone)
    samples, times = np.unique(assigned, return_counts=True)
    if (times > 1).any():
        raise FedBMError(f"{where} contains sample {samples[times > 1][0]} more than once: give it to one client")


def check_scored(partition: Partition, dataset: Dataset) -> None:
    """Raise FedBMError if held-out clients have all val or all test images, so that none is left for scores."""
    for subset in ("val", "test"):
        if not len(partition.scored_samples(dataset, subset)):
            outside = f" outside of the held-out {', '.join(partition.held_out_names)}" if partition.held_out else ""
            raise FedBMError(
                f"{dataset.name} has no {subset} images{outside}, on which the model is scored: hold out others, "
                'or use split = "stratified"'
            )


def hold_out(partition: Partition, count: int) -> Partition:
    """Return a drawn partition with its last *count* clients held out: they never train and are scored at the end.

    Args:
        partition: what a partitioner such as `fedbm.dirichlet()` returned.
        count: number of clients to hold out.

    Returns:
        The partition with fewer clients and *count* held-out ones.

    Raises:
        FedBMError: if no client would remain to train, or clients are held out already.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.hold_out(fedbm.iid(numpy.arange(60), clients=4, seed=0), 1)
        Partition(iid: 3 clients with 15 samples, 1 held out)
    """
    kept = len(partition.clients) - count
    if partition.kind == "column" or partition.held_out or count < 1 or kept < 1:
        raise FedBMError(
            f"cannot hold out {count} of {len(partition.clients)} clients: at least 1 must train, none may be held out "
            "already, and values of a column are held out by name, by_column(held_out=…)"
        )
    return dataclasses.replace(partition, clients=partition.clients[:kept], held_out=partition.clients[kept:])


class Sources(NamedTuple):
    """The values of the column, and the number of each image's value."""

    names: tuple[str, ...]
    numbers: Ints


def find_sources(dataset: Dataset, partition: Partition) -> Sources | None:
    """Return the column's value for each test image, without the images of held-out clients.

    Values are in the order of the clients; a value without training images comes last. Return None if the clients are
    not the values of a column, or if there are more than MAX_SOURCES values.
    """
    if (column := column_of(dataset, partition)) is None:
        return None
    values = dataset.columns[column][partition.scored_samples(dataset, "test")].tolist()
    clients = [str(value) for value in partition.settings.get("values", ())]
    known = [value for value in dict.fromkeys([*clients, *sorted(set(values))]) if value in set(values)]
    if len(known) > MAX_SOURCES:
        return None
    place = {value: number for number, value in enumerate(known)}
    names = tuple(value or f"without {column}" for value in known)
    return Sources(names, np.array([place[value] for value in values], dtype=np.int64))


def column_of(dataset: Dataset, partition: Partition) -> str | None:
    """Return the column that defines the clients; None if another partitioner made them, or the data set lost it."""
    column = str(partition.settings.get("column", ""))
    return column if partition.kind == "column" and column in dataset.columns else None


def heterogeneity(counts: Ints) -> dict[str, float]:
    """Measure how much clients differ, from their class counts [N,K]; p_i is a client's label mix, p the global one.

    *total_variation*: mean over clients of ½ Σ_k |p_ik − p_k|, 0 if all have the global mix.
    *jensen_shannon*: mean over clients of H((p_i + p)/2) − (H(p_i) + H(p))/2 in bits, from 0 (equal) to 1 (disjoint).
    *effective_clients*: 1 / Σ w_i², N if all have the same size. *single_class*: number of clients with one class.
    """
    sizes = counts.sum(axis=1)
    mixes = counts / sizes[:, None]
    overall = counts.sum(axis=0) / sizes.sum()
    weights = sizes / sizes.sum()
    divergence = _entropy((mixes + overall) / 2) - (_entropy(mixes) + _entropy(overall)) / 2
    return {
        "total_variation": float(0.5 * np.abs(mixes - overall).sum(axis=1).mean()),
        "jensen_shannon": float(divergence.mean()),
        "effective_clients": float(1 / (weights**2).sum()),
        "single_class": int(((counts > 0).sum(axis=1) == 1).sum()),
    }


def _entropy(mixes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return H = −Σ p log₂ p over the last axis, with 0 log 0 = 0."""
    return np.asarray(-(mixes * np.log2(np.where(mixes > 0, mixes, 1.0))).sum(axis=-1))


def _sort_samples(samples: ArrayLike) -> Ints:
    """Return a client's sample numbers in ascending order."""
    numbers = np.asarray(samples)
    if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
        raise ValueError("not whole numbers")
    return np.sort(numbers.astype(np.int64))
