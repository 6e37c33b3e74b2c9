from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbm.data.partition import Move, Partition, dirichlet, from_file, from_json, heterogeneity, iid
from fedbm.data.store import Dataset
from fedbm.errors import FedBMError


def a_dataset(labels, split, classes=("a", "b")) -> Dataset:
    return Dataset(
        name="toy",
        classes=classes,
        concepts=classes,
        modality="medical",
        images=np.zeros((len(labels), 16, 16, 1), dtype=np.uint8),
        labels=np.array(labels),
        split=np.array(split, dtype=np.uint8),
        mean=(0.5,),
        std=(0.5,),
        hflip=False,
        vflip=False,
        recommends={},
        checksum="",
        notes=(),
    )


@st.composite
def problems(draw):
    """Label mixes with samples outside training, client numbers and β over all orders of magnitude."""
    labels = np.array(draw(st.lists(st.integers(0, 4), min_size=4, max_size=60)))
    outside = draw(st.integers(0, len(labels) // 2))
    train = np.arange(outside, len(labels))
    min_size = draw(st.integers(1, 3))
    clients = draw(st.integers(1, max(1, len(train) // min_size)))
    beta = draw(st.sampled_from([1e-6, 1e-3, 0.05, 0.5, 1.0, 100.0, 1e9]))
    return labels, train, clients, beta, draw(st.integers(0, 99)), min(min_size, len(train))


@settings(deadline=None, derandomize=True)
@given(problems())
def test_every_training_sample_is_at_exactly_one_client(problem) -> None:
    labels, train, clients, beta, seed, min_size = problem
    for partition in (
        dirichlet(labels, train, clients, beta, seed, min_size),
        iid(train, clients, seed, min_size),
    ):
        assert len(partition.clients) == clients
        assert np.sort(np.concatenate(partition.clients)).tolist() == train.tolist()
        assert min(map(len, partition.clients)) >= min_size
        assert all((np.diff(client) > 0).all() for client in partition.clients)


@settings(deadline=None, derandomize=True)
@given(problems())
def test_same_seed_same_partition_and_json_keeps_it(problem) -> None:
    labels, train, clients, beta, seed, min_size = problem
    first = dirichlet(labels, train, clients, beta, seed, min_size)
    assert dirichlet(labels, train, clients, beta, seed, min_size).digest == first.digest
    again = from_json(json.loads(json.dumps(first.to_json(labels, list("abcde")))))
    assert again.digest == first.digest
    assert (again.kind, again.settings, again.moved) == (first.kind, first.settings, first.moved)


def test_another_seed_is_another_partition() -> None:
    labels = np.arange(200) % 4
    train = np.arange(200)
    assert dirichlet(labels, train, 5, 0.5, 0).digest != dirichlet(labels, train, 5, 0.5, 1).digest
    assert iid(train, 5, 0).digest != iid(train, 5, 1).digest


def test_beta_says_how_unlike_the_clients_are() -> None:
    labels = np.arange(4000) % 8
    spread = [
        heterogeneity(dirichlet(labels, np.arange(4000), 10, beta, 0).counts(labels, 8))["total_variation"]
        for beta in (0.01, 0.1, 1.0, 10.0, 1e6)
    ]
    assert spread == sorted(spread, reverse=True)
    assert spread[0] > 0.7
    assert spread[-1] < 0.01


def test_shares_follow_the_dirichlet_law() -> None:
    """Var p_i = (1/N)(1 − 1/N)/(Nβ + 1) = 0.25·0.75/2.2 = 0.0852 for N = 4, β = 0.3; mean 0.25."""
    classes, each = 1500, 200
    labels = np.repeat(np.arange(classes), each)
    shares = dirichlet(labels, np.arange(len(labels)), 4, 0.3, 0).counts(labels, classes) / each
    assert shares.mean(axis=1) == pytest.approx([0.25] * 4, abs=0.03)
    assert shares.var(axis=1) == pytest.approx([0.0852] * 4, rel=0.1)


def test_missing_samples_come_from_the_largest_client_and_are_on_record() -> None:
    """One class at β → 0 goes to one client whole; the three others are filled from it, two samples each."""
    labels, train = np.zeros(30, dtype=np.int64), np.arange(30)
    partition = dirichlet(labels, train, 4, 1e-6, 0)
    sizes = [len(client) for client in partition.clients]
    assert sorted(sizes) == [2, 2, 2, 24]
    largest = sizes.index(24)
    assert [move.source for move in partition.moved] == [largest] * 6
    assert all(move.sample in partition.clients[move.target] for move in partition.moved)
    with pytest.raises(FedBMError, match="in 100 draws of beta 1e-06 some of the 4 clients"):
        dirichlet(labels, train, 4, 1e-6, 0, strict=True)


def test_draws_are_repeated_before_anything_is_moved() -> None:
    labels, train = np.arange(80) % 4, np.arange(80)
    assert not any(dirichlet(labels, train, 3, 0.3, seed).moved for seed in range(20))


@pytest.mark.parametrize(
    ("clients", "beta", "min_size", "sentence"),
    [
        (6, 1.0, 2, "10 training samples are too few for 6 clients with at least 2 each: have at most 5"),
        (0, 1.0, 2, "0 clients"),
        (2, 1.0, 0, "both must be 1 or more"),
        (2, 0.0, 2, "beta is 0.0"),
        (2, -1.0, 2, "beta is -1.0"),
        (2, float("nan"), 2, "beta is nan"),
        (2, float("inf"), 2, "beta is inf"),
    ],
)
def test_impossible_wishes_are_refused(clients, beta, min_size, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        dirichlet(np.arange(10) % 2, np.arange(10), clients, beta, 0, min_size)


def test_heterogeneity_by_hand() -> None:
    """Sizes 4, 4, 8: Σw² = (1 + 1 + 4)/16. Global mix (½, ½): distances ½, 0, ¼ → mean ¼."""
    assert heterogeneity(np.array([[4, 0], [2, 2], [2, 6]])) == pytest.approx(
        {"total_variation": 0.25, "effective_clients": 16 / 6, "single_class": 1}
    )


def test_counts_and_json_by_hand() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    partition = Partition((np.array([0, 3]), np.array([1, 2, 4])), "iid", {"seed": 7}, (Move(1, 0, 3),))
    assert partition.to_json(labels, ["a", "b"]) == {
        "format": 1,
        "kind": "iid",
        "settings": {"seed": 7},
        "clients": [[0, 3], [1, 2, 4]],
        "counts": [[2, 0], [0, 3]],
        "classes": ["a", "b"],
        "moved": [{"source": 1, "target": 0, "sample": 3}],
    }
    assert partition.digest == replace(partition, kind="other", settings={}, moved=()).digest


TOY = a_dataset([0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 2])


def test_a_partition_is_read_from_its_file(tmp_path) -> None:
    path = tmp_path / "sites.json"
    path.write_text('{"format": 1, "clients": [[3, 0], [2, 1]]}')
    partition = from_file(path, TOY)
    assert [client.tolist() for client in partition.clients] == [[0, 3], [1, 2]]
    assert partition.kind == "file"
    path.write_text(json.dumps(partition.to_json(TOY.labels, TOY.classes)))
    assert from_file(path, TOY).digest == partition.digest


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot read"),
        ("[]", "is no partition of format 1"),
        ('{"format": 2, "clients": [[0]]}', "is no partition of format 1"),
        ('{"format": 1}', 'must hold "clients"'),
        ('{"format": 1, "clients": [[0, 1.5], [2]]}', 'must hold "clients"'),
        ('{"format": 1, "clients": [[true, 1], [2]]}', 'must hold "clients"'),
        ('{"format": 1, "clients": [[-1, 1], [2]]}', 'must hold "clients"'),
        ('{"format": 1, "clients": [[99999999999999999999]]}', 'must hold "clients"'),
        ('{"format": 1, "clients": [[0, 1, 2, 3], []]}', "client 1 of .* has no samples"),
        ('{"format": 1, "clients": [[0, 1], [2, 6]]}', "names sample 6, toy has 0 to 5"),
        ('{"format": 1, "clients": [[0, 1], [2, 4]]}', "gives sample 4 to a client"),
        ('{"format": 1, "clients": [[0, 1, 2], [2, 3]]}', "names sample 2 2 times"),
        ('{"format": 1, "clients": [[0], [2]]}', "leaves out 2 of the training samples of toy"),
        (
            '{"format": 1, "clients": [[0, 1, 2, 3]], "classes": ["b", "a"]}',
            "its classes are not those of toy",
        ),
        ('{"format": 1, "clients": [[0, 1, 2, 3]], "counts": [[1, 3]]}', "its counts are not those of toy"),
        ('{"format": 1, "clients": [[0, 1, 2, 3]], "moved": [[0, 1, 2]]}', '"moved" of .* must list objects'),
        ('{"format": 1, "clients": [[0, 1, 2, 3]], "settings": 3}', '"kind" of .* must be a text'),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, text, sentence) -> None:
    path = tmp_path / "sites.json"
    path.write_text(text)
    with pytest.raises(FedBMError, match=sentence):
        from_file(path, TOY)
