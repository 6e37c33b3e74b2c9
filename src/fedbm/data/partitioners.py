"""Assign every training sample to exactly one client.

    dirichlet:   p_k ~ Dir(β·1_N) for each class k; its shuffled samples are cut at the cumulative sums of p_k
    balanced:    q_i ~ Dir(β·1_K) for each client i; clients of equal size draw the classes of their samples from q_i
    iid:         shuffled, equal parts
    quantity:    sizes q ~ Dir(β·1_N); each client has the label mix of the whole
    by_classes:  each client has k classes; the samples of a class are divided evenly among its clients
    shards:      the samples sorted by class are cut into N·s equal shards; each client has s of them
    column:      each value of a column, such as site, is a client

A small β gives each class to few clients (quantity: most samples to few clients). A large β makes clients similar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbm.data.dataset import Dataset
from fedbm.data.partition import Ints, Move, Partition
from fedbm.data.readers.sample_index import encode_labels
from fedbm.errors import FedBMError, did_you_mean
from fedbm.utils.seeds import numpy_rng

MAX_DRAWS = 100

Clients = list[list[int]]  # sample numbers by client

# by the value of the option `partition`; an argument of a partitioner has the value of the option of the same name
PARTITIONERS: dict[str, Callable[..., Partition]] = {}

_ARGUMENTS = {
    "data": "the data set, or the class number of every sample; or for iid() sample numbers, for by_column() columns.",
    "train": "sample numbers to divide; by default the training samples, or all if *data* is not a data set.",
    "clients": "number of clients.",
    "beta": "β of the Dirichlet distribution; small values give very different clients.",
    "classes_per_client": "number of classes of each client.",
    "shards_per_client": "number of shards of each client.",
    "seed": "seed of the draws.",
    "min_samples": "least number of samples of a client.",
    "column": "name of the column.",
    "held_out": "values that never train. All their samples, also of val and test, are only scored at the end.",
    "strict": "raise FedBMError instead of moving samples to clients that have too few.",
}

_Function = TypeVar("_Function", bound=Callable[..., Partition])


def _partitioner(name: str) -> Callable[[_Function], _Function]:
    """Enter a partitioner into the table, and put its arguments into its docstring in front of the example."""

    def enter(function: _Function) -> _Function:
        PARTITIONERS[name] = function
        arguments = "".join(f"        {key}: {_ARGUMENTS[key]}\n" for key in signature(function).parameters)
        described = (
            f"    Args:\n{arguments}\n    Returns:\n        The partition, with all moves recorded.\n\n    Example:"
        )
        function.__doc__ = (function.__doc__ or "").replace("    Example:", described)
        return function

    return enter


@_partitioner("dirichlet")
def dirichlet(
    data: Dataset | Ints,
    train: Ints | None = None,
    clients: int = 10,
    beta: float = 0.1,
    seed: int = 0,
    min_samples: int = 2,
    strict: bool = False,
) -> Partition:
    """Divide every class among the clients in proportions drawn from Dir(β).

    Up to 100 draws are tried until each client has *min_samples* samples. If none succeeds, the last draw is used and
    missing samples are moved from the largest client.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.dirichlet(numpy.arange(60) % 3, clients=4, beta=0.5, seed=0)
        Partition(dirichlet: 4 clients with 8–29 samples)
    """
    labels, train = _check_arguments(data, train, clients, min_samples)

    def draw(rng: np.random.Generator) -> Clients:
        drawn: Clients = [[] for _ in range(clients)]
        for members in _shuffled_classes(labels, train, rng):
            parts = np.split(members, _draw_cuts(rng, beta, clients, len(members)))
            for client, part in zip(drawn, parts, strict=True):
                client.extend(part.tolist())
        return drawn

    settings = {"clients": clients, "beta": beta, "seed": seed, "min_samples": min_samples}
    return _draw_partition("dirichlet", labels, draw, settings, strict)


@_partitioner("balanced")
def balanced(
    data: Dataset | Ints,
    train: Ints | None = None,
    clients: int = 10,
    beta: float = 0.1,
    seed: int = 0,
    min_samples: int = 2,
) -> Partition:
    """Give all clients the same number of samples, with a label mix drawn from Dir(β); sizes differ by at most one.

    Clients take turns in random order. At its turn, a client draws a class from its mix, among the classes that have
    remaining samples, and takes one of these samples.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.balanced(numpy.arange(60) % 3, clients=4, beta=0.5, seed=0)
        Partition(balanced: 4 clients with 15 samples)
    """
    labels, train = _check_arguments(data, train, clients, min_samples)
    rng = numpy_rng(seed, "partition")
    classes = [members.tolist() for members in _shuffled_classes(labels, train, rng)]
    mixes = np.stack([_draw_log_shares(rng, beta, len(classes)) for _ in range(clients)])
    drawn: Clients = [[] for _ in range(clients)]
    for client in rng.permuted(np.arange(len(train)) % clients):
        # The largest of log q + Gumbel noise is a draw from q. It works even if q underflows for all remaining classes.
        scores = mixes[client] + rng.gumbel(size=len(classes))
        label = int(np.argmax(np.where([bool(members) for members in classes], scores, -np.inf)))
        drawn[client].append(classes[label].pop())
    settings = {"clients": clients, "beta": beta, "seed": seed, "min_samples": min_samples}
    return Partition(list(map(np.array, drawn)), "balanced", settings, labels=labels)


@_partitioner("iid")
def iid(data: Dataset | Ints, clients: int = 10, seed: int = 0, min_samples: int = 2) -> Partition:
    """Shuffle the samples and divide them into equal parts; sizes differ by at most one.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.iid(numpy.arange(60), clients=4, seed=0)
        Partition(iid: 4 clients with 15 samples)
    """
    train = data.indices("train") if isinstance(data, Dataset) else data
    _check_sizes(len(train), clients, min_samples)
    parts = np.array_split(numpy_rng(seed, "partition").permutation(train), clients)
    settings = {"clients": clients, "seed": seed, "min_samples": min_samples}
    return Partition(parts, "iid", settings)


@_partitioner("quantity")
def quantity(
    data: Dataset | Ints,
    train: Ints | None = None,
    clients: int = 10,
    beta: float = 0.1,
    seed: int = 0,
    min_samples: int = 2,
    strict: bool = False,
) -> Partition:
    """Draw the clients' sizes from Dir(β); each client has the label mix of the whole.

    The samples are put in a row in which every class is spread evenly. So each piece cut from the row has each class in
    proportion, up to one or two samples.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.quantity(numpy.arange(60) % 3, clients=4, beta=1, seed=0)
        Partition(quantity: 4 clients with 9–28 samples)
    """
    labels, train = _check_arguments(data, train, clients, min_samples)

    def draw(rng: np.random.Generator) -> Clients:
        classes = list(_shuffled_classes(labels, train, rng))
        positions = [(np.arange(len(members)) + rng.random()) / len(members) for members in classes]
        row = np.concatenate(classes)[np.argsort(np.concatenate(positions), kind="stable")]
        return [part.tolist() for part in np.split(row, _draw_cuts(rng, beta, clients, len(row)))]

    settings = {"clients": clients, "beta": beta, "seed": seed, "min_samples": min_samples}
    return _draw_partition("quantity", labels, draw, settings, strict)


@_partitioner("classes")
def by_classes(
    data: Dataset | Ints,
    train: Ints | None = None,
    clients: int = 10,
    classes_per_client: int = 2,
    seed: int = 0,
    min_samples: int = 2,
    strict: bool = False,
) -> Partition:
    """Give each client *classes_per_client* classes, and each class nearly the same number of clients.

    If a class has fewer samples than clients, some of these clients do not receive a sample of it.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.by_classes(numpy.arange(60) % 3, clients=3, classes_per_client=1, seed=0)
        Partition(classes: 3 clients with 20 samples)
    """
    labels, train = _check_arguments(data, train, clients, min_samples)
    count = len(np.unique(labels[train]))
    least = math.ceil(count / clients)
    if not least <= classes_per_client <= count:
        raise FedBMError(
            f"classes_per_client is {classes_per_client}, but with {clients} clients and {count} classes it must be "
            f"from {least} to {count}"
        )

    def draw(rng: np.random.Generator) -> Clients:
        drawn: Clients = [[] for _ in range(clients)]
        owners = _draw_owners(clients, classes_per_client, count, rng)
        for members, class_owners in zip(_shuffled_classes(labels, train, rng), owners, strict=True):
            for client, part in zip(class_owners, np.array_split(members, len(class_owners)), strict=True):
                drawn[client].extend(part.tolist())
        return drawn

    settings = {"clients": clients, "classes_per_client": classes_per_client, "seed": seed, "min_samples": min_samples}
    return _draw_partition("classes", labels, draw, settings, strict)


@_partitioner("shards")
def shards(
    data: Dataset | Ints,
    train: Ints | None = None,
    clients: int = 10,
    shards_per_client: int = 2,
    seed: int = 0,
    min_samples: int = 2,
    strict: bool = False,
) -> Partition:
    """Sort the samples by class, cut them into equal shards, and give each client *shards_per_client* of them.

    So a client has about *shards_per_client* classes. Sizes of shards differ by at most one sample (McMahan et al.
    *Communication-efficient learning of deep networks from decentralized data.* AISTATS 2017).

    Example:
        >>> import fedbm, numpy
        >>> fedbm.shards(numpy.arange(60) % 3, clients=5, shards_per_client=2, seed=0)
        Partition(shards: 5 clients with 12 samples)
    """
    labels, train = _check_arguments(data, train, clients, min_samples)
    count = clients * shards_per_client
    if not 1 <= shards_per_client <= len(train) // clients:
        raise FedBMError(
            f"{len(train)} training samples cannot be cut into {count} shards: use 1 to {len(train) // clients} shards "
            "per client"
        )
    rng = numpy_rng(seed, "partition")
    row = np.concatenate(list(_shuffled_classes(labels, train, rng)))
    parts, order = np.array_split(row, count), rng.permutation(count).reshape(clients, shards_per_client)
    settings = {"clients": clients, "shards_per_client": shards_per_client, "seed": seed, "min_samples": min_samples}
    drawn = [np.concatenate([parts[shard] for shard in own]).tolist() for own in order]
    moves = _fill_up(drawn, min_samples, rng, strict)  # one shard may have a sample less than another
    return Partition(drawn, "shards", settings, moves, labels)


@_partitioner("column")
def by_column(
    data: Dataset | Mapping[str, NDArray[np.str_]],
    train: Ints | None = None,
    column: str = "site",
    min_samples: int = 2,
    held_out: Sequence[str] = (),
) -> Partition:
    """Make each value of a column a client, in the order of the values.

    A value with fewer than *min_samples* training samples raises an error.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.by_column({"site": numpy.array(["Bern", "Oslo"] * 30)}, column="site")
        Partition(column: 2 clients with 30 samples)
    """
    columns = data.columns if isinstance(data, Dataset) else data
    if column not in columns:
        known = f"the columns are {', '.join(columns)}" if columns else "there are none; add one with a metadata table"
        raise FedBMError(f'the data has no column "{column}"{did_you_mean(column, columns)}: {known}')
    if train is None:
        train = data.indices("train") if isinstance(data, Dataset) else np.arange(len(columns[column]))
    held_out = list(dict.fromkeys(held_out))
    for name in held_out:
        if name not in columns[column]:
            near = did_you_mean(name, set(columns[column].tolist()))
            raise FedBMError(f'the column "{column}" has no value "{name}" to hold out{near}')
    own = columns[column][train]
    values = [value for value in encode_labels(own.tolist())[0] if value not in held_out]
    clients = [train[own == value] for value in values]
    if not values:
        raise FedBMError(f'all values of the column "{column}" are held out: keep at least one to train on')
    for value, client in zip(values, clients, strict=True):
        if not value or len(client) < min_samples:
            raise FedBMError(
                f'{column} "{value}" has {len(client)} training samples: a client needs a name and min_samples = '
                f"{min_samples}; fill the column in, lower min_samples, or merge values of {column}"
            )
    settings = {"column": column, "values": values, "min_samples": min_samples}
    return Partition(
        clients,
        "column",
        settings | ({"held_out": held_out} if held_out else {}),
        held_out=[np.flatnonzero(columns[column] == value) for value in held_out],
    )


def _check_arguments(data: Dataset | Ints, train: Ints | None, clients: int, min_samples: int) -> tuple[Ints, Ints]:
    """Return the class number of every sample, and the samples to divide."""
    labels = data.labels if isinstance(data, Dataset) else np.asarray(data)
    if labels.dtype.kind not in "iu" or (train is not None and np.ndim(train) != 1):
        raise FedBMError("give the data set, or labels and sample numbers, and name the other arguments: clients=10")
    if train is None:
        train = data.indices("train") if isinstance(data, Dataset) else np.arange(len(labels))
    _check_sizes(len(train), clients, min_samples)
    return labels, np.asarray(train)


def _shuffled_classes(labels: Ints, train: Ints, rng: np.random.Generator) -> Iterator[Ints]:
    """Yield the shuffled training samples of one class after the other."""
    for label in np.unique(labels[train]):
        yield rng.permutation(train[labels[train] == label])


def _draw_owners(clients: int, per_client: int, classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Return the clients of each class. In turn, each client takes the classes with the fewest owners, ties at random.

    Then the numbers of owners differ by at most one, and none is 0 if clients × per_client ≥ classes.
    """
    owners: list[list[int]] = [[] for _ in range(classes)]
    for client in rng.permutation(clients).tolist():
        taken = np.array([len(class_owners) for class_owners in owners])
        for label in np.lexsort((rng.random(classes), taken))[:per_client]:
            owners[label].append(client)
    return owners


def _draw_partition(
    kind: str, labels: Ints, draw: Callable[[np.random.Generator], Clients], settings: Mapping[str, Any], strict: bool
) -> Partition:
    """Return the first draw that gives each client enough samples. If none does, fill up the last draw."""
    for attempt in range(MAX_DRAWS):
        drawn = draw(numpy_rng(settings["seed"], "partition", attempt))
        if min(map(len, drawn)) >= settings["min_samples"]:
            break
    moves = _fill_up(drawn, settings["min_samples"], numpy_rng(settings["seed"], "partition", "moves"), strict)
    return Partition(list(map(np.array, drawn)), kind, settings, moves, labels)


def _fill_up(clients: Clients, min_samples: int, rng: np.random.Generator, strict: bool) -> tuple[Move, ...]:
    """Fill every client up to *min_samples* with random samples of the client that is largest at that moment.

    If *strict*, raise FedBMError instead.
    """
    moves = []
    for target, client in enumerate(clients):
        while len(client) < min_samples:
            if strict:
                raise FedBMError(
                    f"no draw gave each of the {len(clients)} clients at least {min_samples} samples: use fewer "
                    "clients or a smaller min_samples, or remove strict_min_samples so that samples can be moved"
                )
            source = max(range(len(clients)), key=lambda number: len(clients[number]))
            sample = clients[source].pop(int(rng.integers(len(clients[source]))))
            client.append(sample)
            moves.append(Move(source, target, sample))
    return tuple(moves)


def _draw_cuts(rng: np.random.Generator, beta: float, clients: int, samples: int) -> Ints:
    """Return where to cut a row of *samples* so that the parts follow Dir(β)."""
    shares = np.exp(_draw_log_shares(rng, beta, clients))
    return np.asarray(np.rint(np.cumsum(shares / shares.sum())[:-1] * samples), dtype=np.int64)


def _draw_log_shares(rng: np.random.Generator, beta: float, count: int) -> NDArray[np.float64]:
    """Return logarithms of *count* shares that follow Dir(β), up to a constant.

    Logarithms of gamma variates are drawn, log G(β) = log G(β+1) + log U / β, because gamma variates themselves
    underflow to 0 for a small β.
    """
    if not (math.isfinite(beta) and beta >= 1e-6):
        raise FedBMError(f"beta is {beta}, but it must be a finite number from 0.000001 up")
    logs = np.log(rng.standard_gamma(beta + 1, count)) - rng.standard_exponential(count) / beta
    return np.asarray(logs - logs.max())


def _check_sizes(samples: int, clients: int, min_samples: int) -> None:
    if clients < 1 or min_samples < 1:
        raise FedBMError(f"clients is {clients} and min_samples is {min_samples}, but both must be 1 or more")
    if clients * min_samples > samples:
        raise FedBMError(
            f"{samples} training samples are too few for {clients} clients with at least {min_samples} each: "
            f"use at most {samples // min_samples} clients"
        )
