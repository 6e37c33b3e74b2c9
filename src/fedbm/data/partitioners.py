"""The ways to deal training samples to clients.

    Dirichlet:  p_k ~ Dir(β·1_N) for each class k; its shuffled samples are cut at the cumulative sums of p_k
    IID:        shuffled, equal shares
    quantity:   q ~ Dir(β·1_N) are the clients' sizes; each has the label mix of the whole
    classes:    each client holds k classes; a class's samples are shared evenly among the clients that hold it
    column:     each value of a column (site, writer, scanner) is a client

Small β: each class sits with few clients (quantity: few clients hold most). Large β: all clients alike.
Every training sample goes to exactly one client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from fedbm.data.partition import Indices, Move, Partition, sort_samples
from fedbm.data.readers.sample_index import encode_labels
from fedbm.errors import FedBMError, did_you_mean
from fedbm.utils.seeds import numpy_rng

DRAWS = 100

Held = list[list[int]]  # sample numbers by client


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
    _check_beta(beta)

    def draw(rng: np.random.Generator) -> Held:
        held: Held = [[] for _ in range(clients)]
        for members in _shuffled_classes(labels, train, rng):
            for client, part in zip(held, np.split(members, _cuts(rng, beta, clients, len(members))), strict=True):
                client.extend(part.tolist())
        return held

    held, moved = _large_enough(draw, f"of beta {beta}", seed, min_size, strict)
    settings = {"clients": clients, "beta": beta, "seed": seed, "min_size": min_size}
    return Partition(sort_samples(held), "dirichlet", settings, moved)


def iid(train: Indices, clients: int, seed: int, min_size: int = 2) -> Partition:
    """Shuffled and dealt in equal shares (sizes differ by one at most)."""
    _check_sizes(len(train), clients, min_size)
    parts = np.array_split(numpy_rng(seed, "partition").permutation(train), clients)
    settings = {"clients": clients, "seed": seed, "min_size": min_size}
    return Partition(sort_samples([part.tolist() for part in parts]), "iid", settings)


def quantity(
    labels: NDArray[np.int64],
    train: Indices,
    clients: int,
    beta: float,
    seed: int,
    min_size: int = 2,
    strict: bool = False,
) -> Partition:
    """Sizes by one Dir(β) draw, each client with the label mix of the whole; the guard is that of dirichlet().

    The samples stand in a row in which every class is spread evenly, so that whatever piece is cut from it has a
    share of each class in proportion, give or take a sample or two.
    """
    _check_sizes(len(train), clients, min_size)
    _check_beta(beta)

    def draw(rng: np.random.Generator) -> Held:
        classes = list(_shuffled_classes(labels, train, rng))
        places = [(np.arange(len(members)) + rng.random()) / len(members) for members in classes]
        row = np.concatenate(classes)[np.argsort(np.concatenate(places), kind="stable")]
        return [part.tolist() for part in np.split(row, _cuts(rng, beta, clients, len(row)))]

    held, moved = _large_enough(draw, f"of beta {beta}", seed, min_size, strict)
    settings = {"clients": clients, "beta": beta, "seed": seed, "min_size": min_size}
    return Partition(sort_samples(held), "quantity", settings, moved)


def by_classes(
    labels: NDArray[np.int64],
    train: Indices,
    clients: int,
    classes_per_client: int,
    seed: int,
    min_size: int = 2,
    strict: bool = False,
) -> Partition:
    """*classes_per_client* classes for each client, each class at nearly equally many clients, at one at least.

    A class with fewer samples than clients that hold it goes to as many as it has samples, so that some clients
    end with fewer classes; one that is left with fewer than *min_size* samples is filled as in dirichlet().
    """
    _check_sizes(len(train), clients, min_size)
    count = len(np.unique(labels[train]))
    if not 1 <= classes_per_client <= count:
        raise FedBMError(
            f"classes_per_client is {classes_per_client}, it must be from 1 to the number of classes, {count}"
        )
    if clients * classes_per_client < count:
        raise FedBMError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all {count} classes: "
            f"have at least {math.ceil(count / clients)} classes per client"
        )

    def draw(rng: np.random.Generator) -> Held:
        held: Held = [[] for _ in range(clients)]
        owners = _owners(clients, classes_per_client, count, rng)
        for members, having in zip(_shuffled_classes(labels, train, rng), owners, strict=True):
            for client, part in zip(having, np.array_split(members, len(having)), strict=True):
                held[client].extend(part.tolist())
        return held

    held, moved = _large_enough(draw, f"of {classes_per_client} classes each", seed, min_size, strict)
    settings = {"clients": clients, "classes_per_client": classes_per_client, "seed": seed, "min_size": min_size}
    return Partition(sort_samples(held), "classes", settings, moved)


def by_column(columns: Mapping[str, NDArray[np.str_]], train: Indices, column: str, min_size: int = 2) -> Partition:
    """Each value of *column* among the training samples is a client, in the order of the values.

    Nothing is drawn and nothing is moved: a value with fewer than *min_size* samples is refused by name.
    """
    if column not in columns:
        known = f"it has {', '.join(columns)}" if columns else "it has none, a table of path,label,site would bring one"
        raise FedBMError(f'the data have no column "{column}"{did_you_mean(column, columns)}; {known}')
    values, client_of = encode_labels(columns[column][train].tolist())
    sizes = np.bincount(client_of)
    if "" in values:
        raise FedBMError(f'the column "{column}" is empty for {sizes[0]} training samples: each needs a client')
    if sizes.min() < min_size:
        raise FedBMError(
            f'{column} "{values[sizes.argmin()]}" has {sizes.min()} training samples, fewer than min_size = '
            f"{min_size}: lower min_size, or join it with another {column} in the data"
        )
    held = [train[client_of == client].tolist() for client in range(len(values))]
    settings = {"column": column, "values": list(values), "min_size": min_size}
    return Partition(sort_samples(held), "column", settings)


def _shuffled_classes(labels: NDArray[np.int64], train: Indices, rng: np.random.Generator) -> Iterator[Indices]:
    """The training samples of one class after the other, each shuffled when its turn comes."""
    for label in np.unique(labels[train]):
        yield rng.permutation(train[labels[train] == label])


def _owners(clients: int, each: int, classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Which clients hold a class: client after client takes the *each* classes that fewest have taken, ties by lot.

    So the numbers of owners differ by one at most, and none is 0 where clients × each ≥ classes.
    """
    owners: list[list[int]] = [[] for _ in range(classes)]
    for client in rng.permutation(clients).tolist():
        taken = np.array([len(having) for having in owners])
        for label in np.lexsort((rng.random(classes), taken))[:each]:
            owners[label].append(client)
    return owners


def _large_enough(
    draw: Callable[[np.random.Generator], Held], what: str, seed: int, min_size: int, strict: bool
) -> tuple[Held, tuple[Move, ...]]:
    """The first of 100 draws that leaves no client below *min_size*; else the last, filled up."""
    for attempt in range(DRAWS):
        held = draw(numpy_rng(seed, "partition", attempt))
        if min(map(len, held)) >= min_size:
            return held, ()
    if strict:
        raise FedBMError(
            f"in {DRAWS} draws {what} some of the {len(held)} clients always had fewer than {min_size} "
            "samples: ask for less skew, have fewer clients, or let samples be moved (strict off)"
        )
    return held, tuple(_fill(held, min_size, numpy_rng(seed, "partition", "moves")))


def _fill(held: Held, min_size: int, rng: np.random.Generator) -> list[Move]:
    """Bring every client up to *min_size*, one random sample of the then largest client at a time."""
    moved = []
    for target, client in enumerate(held):
        while len(client) < min_size:
            source = max(range(len(held)), key=lambda number: len(held[number]))
            sample = held[source].pop(int(rng.integers(len(held[source]))))
            client.append(sample)
            moved.append(Move(source, target, sample))
    return moved


def _cuts(rng: np.random.Generator, beta: float, clients: int, samples: int) -> NDArray[np.int64]:
    """Where to cut a row of *samples* so that clients get shares ~ Dir(β).

    Drawn as exp(log Γ-variates) with log G(β) = log G(β+1) + log U / β. In logarithms no β is too small; variates
    drawn directly would all underflow to 0, and 0/0 is no share.
    """
    logs = np.log(rng.standard_gamma(beta + 1, clients)) - rng.standard_exponential(clients) / beta
    shares = np.exp(logs - logs.max())
    return np.asarray(np.rint(np.cumsum(shares / shares.sum())[:-1] * samples), dtype=np.int64)


def _check_sizes(samples: int, clients: int, min_size: int) -> None:
    if clients < 1 or min_size < 1:
        raise FedBMError(f"{clients} clients with at least {min_size} samples each: both must be 1 or more")
    if clients * min_size > samples:
        raise FedBMError(
            f"{samples} training samples are too few for {clients} clients with at least {min_size} each: "
            f"have at most {samples // min_size} clients"
        )


def _check_beta(beta: float) -> None:
    if not (math.isfinite(beta) and beta >= 1e-6):
        raise FedBMError(f"beta is {beta}, it must be a finite number from 0.000001 up")
