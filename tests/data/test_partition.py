"""Partitioners assign every training sample to one client, and partition files are checked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import make_dataset

from fedbm.data.partition import Move, Partition, heterogeneity, hold_out, load_partition, parse_partition
from fedbm.data.partitioners import balanced, by_classes, by_column, dirichlet, iid, quantity, shards
from fedbm.errors import FedBMError


@st.composite
def problems(draw):
    """Generate labels with samples outside training, numbers of clients, and β of all orders of magnitude."""
    labels = np.array(draw(st.lists(st.integers(0, 4), min_size=4, max_size=60)))
    outside = draw(st.integers(0, len(labels) // 2))
    train = np.arange(outside, len(labels))
    min_samples = draw(st.integers(1, 3))
    clients = draw(st.integers(1, max(1, len(train) // min_samples)))
    beta = draw(st.sampled_from([1e-6, 1e-3, 0.05, 0.5, 1.0, 100.0, 1e9]))
    return labels, train, clients, beta, draw(st.integers(0, 99)), min(min_samples, len(train))


def sixty_images():
    """A data set of three classes and two sites, in which 40 images are for training."""
    images, labels, split = np.zeros((60, 16, 16, 1), np.uint8), np.arange(60) % 3, np.arange(60) // 20
    columns = {"site": np.array(["a", "b"] * 30)}
    return make_dataset(images, labels, np.maximum(split - 1, 0), ("a", "b", "c"), columns=columns)


def test_a_data_set_is_divided_as_its_labels_and_training_samples_are() -> None:
    data = sixty_images()
    train = data.indices("train")
    for drawn, same in (
        (dirichlet(data, clients=3), dirichlet(data.labels, train, 3, 0.1, 0)),
        (quantity(data, clients=3, beta=1), quantity(data.labels, train, 3, 1, 0)),
        (by_classes(data, clients=3), by_classes(data.labels, train, 3, 2, 0)),
        (by_column(data, column="site"), by_column(data.columns, train, "site")),
        (iid(data, clients=3), iid(train, 3, 0)),
    ):
        assert drawn.digest == same.digest
    assert dirichlet(np.arange(60) % 3, clients=3).digest == dirichlet(np.arange(60) % 3, np.arange(60), 3).digest


@pytest.mark.parametrize("wrong", [lambda data: dirichlet(data, 10), lambda data: dirichlet(["a", "b"] * 30)])
def test_wrong_arguments_get_a_sentence(wrong) -> None:
    with pytest.raises(FedBMError, match="give the data set, or labels and sample numbers, and name the other arg"):
        wrong(sixty_images())


def enough_classes(labels, train, clients) -> int:
    """Return the fewest classes per client with which every class has a client."""
    return -(-len(np.unique(labels[train])) // clients)


@settings(derandomize=True)
@given(problems())
def test_every_training_sample_belongs_to_one_client(problem) -> None:
    labels, train, clients, beta, seed, min_samples = problem
    for partition in (
        dirichlet(labels, train, clients, beta, seed, min_samples),
        quantity(labels, train, clients, beta, seed, min_samples),
        by_classes(labels, train, clients, enough_classes(labels, train, clients), seed, min_samples),
        iid(train, clients, seed, min_samples),
        balanced(labels, train, clients, beta, seed, min_samples),
        shards(labels, train, clients, 1, seed, min_samples),
    ):
        assert len(partition.clients) == clients
        assert np.sort(np.concatenate(partition.clients)).tolist() == train.tolist()
        assert min(map(len, partition.clients)) >= min_samples
        assert all((np.diff(client) > 0).all() for client in partition.clients)


@settings(derandomize=True)
@given(problems())
def test_partitions_are_reproducible_and_survive_json(problem) -> None:
    labels, train, clients, beta, seed, min_samples = problem
    each = enough_classes(labels, train, clients)
    for kind, partition in (
        ("dirichlet", lambda: dirichlet(labels, train, clients, beta, seed, min_samples)),
        ("quantity", lambda: quantity(labels, train, clients, beta, seed, min_samples)),
        ("classes", lambda: by_classes(labels, train, clients, each, seed, min_samples)),
        ("balanced", lambda: balanced(labels, train, clients, beta, seed, min_samples)),
        ("shards", lambda: shards(labels, train, clients, 1, seed, min_samples)),
        ("column", lambda: by_column({"site": labels.astype(np.str_)}, train, "site", 1)),
    ):
        first = partition()
        assert first.kind == kind
        assert partition().digest == first.digest
        again = parse_partition(json.loads(json.dumps(first.to_json(labels, list("abcde")))), "saved")
        assert again.digest == first.digest
        assert (again.kind, again.settings, again.moved) == (first.kind, first.settings, first.moved)


def test_different_seeds_give_different_partitions() -> None:
    labels = np.arange(200) % 4
    train = np.arange(200)
    assert dirichlet(labels, train, 5, 0.5, 0).digest != dirichlet(labels, train, 5, 0.5, 1).digest
    assert iid(train, 5, 0).digest != iid(train, 5, 1).digest
    assert quantity(labels, train, 5, 0.5, 0).digest != quantity(labels, train, 5, 0.5, 1).digest
    assert by_classes(labels, train, 5, 2, 0).digest != by_classes(labels, train, 5, 2, 1).digest


def test_partitions_do_not_change_between_versions() -> None:
    """Run ids contain the partition's digest, so it must never change."""
    labels, train = np.arange(120) * 7 % 5, np.arange(20, 120)
    assert dirichlet(labels, train, 4, 0.3, 3).digest[:16] == "a843a8901a0526ed"
    assert dirichlet(0 * labels, train, 4, 1e-6, 3).digest[:16] == "17e1540e0c0b4ae3"
    assert iid(train, 4, 3).digest[:16] == "3b3b36b802f6d23d"


def test_heterogeneity_decreases_with_beta() -> None:
    labels = np.arange(4000) % 8
    spread = [
        heterogeneity(dirichlet(labels, np.arange(4000), 10, beta, 0).counts(labels, 8))["total_variation"]
        for beta in (0.01, 0.1, 1.0, 10.0, 1e6)
    ]
    assert spread == sorted(spread, reverse=True)
    assert spread[0] > 0.7
    assert spread[-1] < 0.01


def test_proportions_follow_the_dirichlet_distribution() -> None:
    """Var p_i = (1/N)(1 − 1/N)/(Nβ + 1) = 0.25·0.75/2.2 = 0.0852 for N = 4, β = 0.3; mean 0.25."""
    classes, each = 1500, 200
    labels = np.repeat(np.arange(classes), each)
    shares = dirichlet(labels, np.arange(len(labels)), 4, 0.3, 0).counts(labels, classes) / each
    assert shares.mean(axis=1) == pytest.approx([0.25] * 4, abs=0.03)
    assert shares.var(axis=1) == pytest.approx([0.0852] * 4, rel=0.1)


def test_quantity_varies_sizes_and_keeps_the_label_mix() -> None:
    """Sizes follow Dir(β), Var q_i = 0.25·0.75/(4β + 1) as above; every client has each class in proportion."""
    labels, train = np.repeat(np.arange(3), (600, 300, 100)), np.arange(1000)
    sizes = []
    for seed in range(300):
        counts = quantity(labels, train, 4, 5.0, seed).counts(labels, 3)
        sizes.append(counts.sum(axis=1) / 1000)
        expected = counts.sum(axis=1, keepdims=True) * np.array([0.6, 0.3, 0.1])
        assert np.abs(counts - expected).max() <= 2
    assert np.var(sizes, axis=0) == pytest.approx([0.25 * 0.75 / 21] * 4, rel=0.3)
    assert np.mean(sizes, axis=0) == pytest.approx([0.25] * 4, abs=0.02)


@settings(derandomize=True, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
def test_by_classes_gives_k_classes_to_every_client_and_covers_every_class(clients, classes, each, seed) -> None:
    """With 12 samples of each class there is one for every owner; owners' numbers differ by one, shares by one."""
    labels, train = np.arange(12 * classes) % classes, np.arange(12 * classes)
    each = min(each, classes)
    if clients * each < classes:
        with pytest.raises(FedBMError, match=f"with {clients} clients and {classes} classes it must be from"):
            by_classes(labels, train, clients, each, seed, min_samples=1)
        return
    counts = by_classes(labels, train, clients, each, seed, min_samples=1).counts(labels, classes)
    assert ((counts > 0).sum(axis=1) == each).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.min() >= 1
    assert owners.max() - owners.min() <= 1
    for label in range(classes):
        shares = counts[counts[:, label] > 0, label]
        assert shares.max() - shares.min() <= 1


def test_by_classes_gives_clients_different_pairs_of_classes() -> None:
    labels, train = np.arange(400) % 8, np.arange(400)
    counts = by_classes(labels, train, 12, 2, 0).counts(labels, 8)
    assert len({tuple(np.flatnonzero(row)) for row in counts}) > 6


def test_a_class_with_fewer_samples_than_clients() -> None:
    """by_classes gives it to as many of its owners as it has samples; the others need no special case."""
    labels = np.array([0] * 40 + [1] * 2)
    train = np.arange(42)
    for partition in (
        dirichlet(labels, train, 5, 1.0, 0),
        quantity(labels, train, 5, 1.0, 0),
        iid(train, 5, 0),
        by_classes(labels, train, 5, 2, 0),
    ):
        counts = partition.counts(labels, 2)
        assert counts[:, 1].sum() == 2
        assert partition.moved == ()
    assert sorted(counts[:, 1]) == [0, 0, 0, 1, 1]
    single = by_classes(labels, train, 5, 1, 0)  # two or three clients own the class of two samples
    assert min(map(len, single.clients)) == 2
    assert single.moved
    assert all(move.sample in single.clients[move.target] for move in single.moved)
    assert {len(single.clients[move.target]) for move in single.moved} == {
        2
    }  # only clients with too few samples were filled
    with pytest.raises(FedBMError, match="no draw gave each of the 5 clients"):
        by_classes(labels, train, 5, 1, 0, strict=True)


def test_shards_cut_the_samples_sorted_by_class_into_equal_pieces() -> None:
    """Classes of 12, 6 and 6 samples make 8 shards of 3 samples, each of one class."""
    labels, train = np.array([0, 1, 0, 2] * 6), np.arange(24)
    counts = shards(labels, train, 4, 2, 0).counts(labels, 3)
    assert (counts.sum(axis=1) == 6).all()
    assert (counts % 3 == 0).all()
    assert shards(labels, train, 4, 2, 0).digest != shards(labels, train, 4, 2, 1).digest
    assert {len(client) for client in shards(labels, train, 5, 2, 0).clients} <= {4, 5, 6}  # 10 shards of 2 or 3
    filled = [shards(labels, train[:6], 2, 2, seed, min_samples=3) for seed in range(20)]  # 4 shards of 1 or 2
    assert [len(client) for partition in filled for client in partition.clients] == [3] * 40
    assert {len(partition.moved) for partition in filled} == {0, 1}
    moved = next(seed for seed, partition in enumerate(filled) if partition.moved)
    with pytest.raises(FedBMError, match="no draw gave each of the 2 clients at least 3 samples"):
        shards(labels, train[:6], 2, 2, moved, min_samples=3, strict=True)


@pytest.mark.parametrize("each", [0, 6])
def test_invalid_shards_per_client_are_refused(each) -> None:
    with pytest.raises(FedBMError, match=f"10 training samples cannot be cut into {2 * each} shards: use 1 to 5"):
        shards(np.arange(10) % 2, np.arange(10), 2, each, 0)


def test_balanced_clients_have_equal_sizes_and_mixes_that_differ_less_with_a_larger_beta() -> None:
    labels, train = np.arange(8000) % 4, np.arange(8000)
    counts = balanced(labels, train, 7, 0.5, 0).counts(labels, 4)
    assert sorted(counts.sum(axis=1)) == [1142] + [1143] * 6
    spread = [
        heterogeneity(balanced(labels, train, 10, beta, 0).counts(labels, 4))["total_variation"]
        for beta in (0.1, 1.0, 10.0, 1e6)
    ]
    assert spread == sorted(spread, reverse=True)
    assert spread[0] > 0.4
    assert spread[-1] < 0.05


def test_the_last_clients_are_held_out() -> None:
    whole = iid(np.arange(40), 5, 0)
    partition = hold_out(whole, 2)
    assert [c.tolist() for c in partition.clients] == [c.tolist() for c in whole.clients[:3]]
    assert [c.tolist() for c in partition.held_out] == [c.tolist() for c in whole.clients[3:]]
    assert partition.held_out_names == ("3", "4")
    assert partition.digest != iid(np.arange(40), 3, 0).digest
    for wrong, count in ((whole, 5), (whole, 0), (partition, 1)):
        with pytest.raises(FedBMError, match=f"cannot hold out {count} of . clients"):
            hold_out(wrong, count)
    sites = {"site": np.array(["Bern", "Oslo"] * 6)}
    with pytest.raises(FedBMError, match="values of a column are held out by name"):
        hold_out(by_column(sites), 1)


def test_a_held_out_site_has_all_its_samples() -> None:
    """Ålesund has no training sample; it can be held out, too."""
    partition = by_column(SITES, np.array([0, 1, 3]), "site", held_out=["Oslo", "Ålesund"])
    assert [client.tolist() for client in partition.clients] == [[1, 3]]
    assert [client.tolist() for client in partition.held_out] == [[0, 2], [4]]
    assert partition.settings["values"] == ["Bern"]
    assert partition.held_out_names == ("Oslo", "Ålesund")
    with pytest.raises(FedBMError, match='the column "site" has no value "oslo" to hold out .did you mean "Oslo".'):
        by_column(SITES, np.arange(4), "site", held_out=["oslo"])
    with pytest.raises(FedBMError, match='all values of the column "site" are held out: keep at least one'):
        by_column(SITES, np.arange(4), "site", held_out=["Oslo", "Bern"])


SITES = {"site": np.array(["Oslo", "Bern", "Oslo", "Bern", "Ålesund", "Bern"]), "scanner": np.array([""] * 6)}


def test_each_value_of_a_column_is_a_client() -> None:
    """Clients are sorted by value. Ålesund has no training sample, so it is not a client."""
    partition = by_column(SITES, np.array([0, 1, 2, 3]), "site")
    assert [client.tolist() for client in partition.clients] == [[1, 3], [0, 2]]
    assert partition.settings["values"] == ["Bern", "Oslo"]
    writers = {"writer": np.array(["10", "9", "10", "9"])}
    assert by_column(writers, np.arange(4), "writer").settings["values"] == ["9", "10"]


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("sites", 'the data has no column "sites" \\(did you mean "site"\\?\\): the columns are site, scanner'),
        ("scanner", 'scanner "" has 5 training samples: a client needs a name'),
        ("site", 'site "Ålesund" has 1 training samples: a client needs .* min_samples = 2'),
    ],
)
def test_unusable_columns_are_refused(column, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        by_column(SITES, np.arange(5), column)


def test_a_value_is_held_out_once() -> None:
    sites = {"site": np.array(["a", "b", "c"] * 4)}
    assert by_column(sites, held_out=["a", "a"]).held_out_names == ("a",)


def test_without_columns_the_error_says_how_to_add_one() -> None:
    with pytest.raises(FedBMError, match='no column "site": there are none; add one with a metadata table'):
        by_column({}, np.arange(5), "site")


@pytest.mark.parametrize("each", [0, 3])
def test_invalid_classes_per_client_are_refused(each) -> None:
    with pytest.raises(
        FedBMError, match=f"classes_per_client is {each}, but with 2 clients and 2 classes it must be from 1 to 2"
    ):
        by_classes(np.arange(10) % 2, np.arange(10), 2, each, 0)


def test_missing_samples_are_moved_from_the_largest_client_and_recorded() -> None:
    """At β → 0 a class goes to a single client; the three others are filled from it with two samples each."""
    labels, train = np.zeros(30, dtype=np.int64), np.arange(30)
    partition = dirichlet(labels, train, 4, 1e-6, 0)
    sizes = [len(client) for client in partition.clients]
    assert sorted(sizes) == [2, 2, 2, 24]
    largest = sizes.index(24)
    assert [move.source for move in partition.moved] == [largest] * 6
    assert all(move.sample in partition.clients[move.target] for move in partition.moved)
    with pytest.raises(FedBMError, match="no draw gave each of the 4 clients"):
        dirichlet(labels, train, 4, 1e-6, 0, strict=True)


def test_draws_are_repeated_before_anything_is_moved() -> None:
    labels, train = np.arange(80) % 4, np.arange(80)
    assert not any(dirichlet(labels, train, 3, 0.3, seed).moved for seed in range(20))


@pytest.mark.parametrize(
    ("clients", "beta", "min_samples", "sentence"),
    [
        (6, 1.0, 2, "10 training samples are too few for 6 clients with at least 2 each: use at most 5"),
        (0, 1.0, 2, "clients is 0"),
        (2, 1.0, 0, "both must be 1 or more"),
        (2, 0.0, 2, "beta is 0.0"),
        (2, -1.0, 2, "beta is -1.0"),
        (2, float("nan"), 2, "beta is nan"),
        (2, float("inf"), 2, "beta is inf"),
    ],
)
def test_invalid_arguments_are_refused(clients, beta, min_samples, sentence) -> None:
    for partition in (dirichlet, quantity, balanced):
        with pytest.raises(FedBMError, match=sentence):
            partition(np.arange(10) % 2, np.arange(10), clients, beta, 0, min_samples)


def test_heterogeneity_by_hand() -> None:
    """Sizes 4, 4, 8: Σw² = (1 + 1 + 4)/16. Global mix (½, ½): distances ½, 0, ¼ → mean ¼.

    Jensen–Shannon to (½, ½), which has 1 bit: of (1, 0), H(¾, ¼) − ½; of (¼, ¾), H(⅜, ⅝) − (H(¼, ¾) + 1)/2.
    """
    quarter, eighths = 2 - 0.75 * np.log2(3), 3 - (3 * np.log2(3) + 5 * np.log2(5)) / 8
    divergence = ((quarter - 0.5) + 0 + (eighths - (quarter + 1) / 2)) / 3
    assert heterogeneity(np.array([[4, 0], [2, 2], [2, 6]])) == pytest.approx(
        {"total_variation": 0.25, "jensen_shannon": divergence, "effective_clients": 16 / 6, "single_class": 1}
    )


def test_disjoint_clients_have_maximal_heterogeneity() -> None:
    """With a different class for each of N clients, TV = 1 − 1/N and the divergence approaches 1 bit."""
    found = heterogeneity(np.eye(1000, dtype=np.int64))
    assert found["total_variation"] == pytest.approx(0.999)
    assert 0.99 < found["jensen_shannon"] < 1


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


TOY = make_dataset(np.zeros((6, 16, 16, 1), dtype=np.uint8), [0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 2])


def test_a_partition_is_loaded_from_a_file(tmp_path) -> None:
    path = tmp_path / "sites.json"
    path.write_text('{"format": 1, "clients": [[3, 0], [2, 1]]}')
    partition = load_partition(path, TOY)
    assert [client.tolist() for client in partition.clients] == [[0, 3], [1, 2]]
    assert partition.kind == "file"
    path.write_text(json.dumps(partition.to_json(TOY.labels, TOY.classes)))
    assert load_partition(path, TOY).digest == partition.digest


def test_an_edited_file_loses_its_kind_and_settings(tmp_path) -> None:
    """Sample 2 is moved from client 1 to client 0, but the counts in the file are not updated."""
    original = Partition((np.array([0, 3]), np.array([1, 2])), "iid", {"seed": 7}, (Move(1, 0, 3),))
    saved = original.to_json(TOY.labels, TOY.classes)
    path = tmp_path / "sites.json"
    path.write_text(json.dumps(saved))
    assert (load_partition(path, TOY).kind, load_partition(path, TOY).settings) == ("iid", {"seed": 7})
    path.write_text(json.dumps(saved | {"clients": [[0, 2, 3], [1]]}))
    edited = load_partition(path, TOY)
    assert [client.tolist() for client in edited.clients] == [[0, 2, 3], [1]]
    assert (edited.kind, edited.settings, edited.moved) == ("file", {}, ())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot read"),
        ("[]", "states no format"),
        ('{"format": 2, "clients": [[0]]}', "has format 2; this version of fedbm reads format 1"),
        ('{"format": 1}', "clients is missing"),
        ('{"format": 1, "clients": [[0, 1.5], [2]]}', "clients\\[0\\]\\[1\\] must be a whole number"),
        ('{"format": 1, "clients": [[true, 1], [2]]}', "clients\\[0\\]\\[0\\] must be a whole number"),
        ('{"format": 1, "clients": [[-1, 1], [2]]}', "clients\\[0\\]\\[0\\] must be a whole number"),
        ('{"format": 1, "clients": [[99999999999999999999]]}', "clients\\[0\\]\\[0\\] must be a whole number"),
        ('{"format": 1, "clients": [[0, 1, 2, 3], []]}', "client 1 of .* has no samples"),
        ('{"format": 1, "clients": [[0, 1], [2, 6]]}', "assigns sample 6, which is not a training sample of toy"),
        ('{"format": 1, "clients": [[0, 1], [2, 4]]}', "assigns sample 4, which is not a training sample of toy"),
        ('{"format": 1, "clients": [[0, 1, 2], [2, 3]]}', "contains sample 2 more than once"),
        ('{"format": 1, "clients": [[0], [2]]}', "does not contain 2 of the training samples of toy"),
        (
            '{"format": 1, "clients": [[0, 1, 2, 3]], "classes": ["b", "a"]}',
            "it does not have the classes of toy",
        ),
        ('{"format": 1, "clients": [[0, 1, 2, 3]], "moved": [[0, 1, 2]]}', "moved\\[0\\] must be an object with keys"),
        ('{"format": 1, "clients": [[0, 1]], "held_out": [[2]]}', "does not contain 1 of the training samples of toy"),
        ('{"format": 1, "clients": [[0, 1, 2, 3]], "held_out": [[3]]}', "contains sample 3 more than once"),
        ('{"format": 1, "clients": [[0, 1, 2, 3]], "held_out": [[]]}', "client 1 of .* has no samples"),
        (
            '{"format": 1, "clients": [[0, 1, 2, 3]], '
            '"shift": {"kind": "hue", "strength": 1, "seed": 0, "levels": [1]}}',
            'shift.kind must be "brightness", "contrast", "blur" or "noise", not "hue"',
        ),
        (
            '{"format": 1, "clients": [[0, 1, 2, 3]], '
            '"shift": {"kind": "blur", "strength": 1, "seed": 0, "levels": []}}',
            "has 0 levels of its feature shift for 1 clients",
        ),
        ('{"format": 1, "clients": [[0, 1, 2, 3]], "settings": 3}', "settings must be an object with keys"),
        (
            '{"format": 1, "clients": [[0, 1, 2, 3]], "settings": {"beta": "0.1"}}',
            'settings.beta must be a number from 0, not "0.1"',
        ),
        (
            '{"format": 1, "clients": [[0, 1, 2, 3]], "settings": {"alpha": Infinity}}',
            "settings.alpha must be made of finite numbers",
        ),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, sentence) -> None:
    path = tmp_path / "sites.json"
    path.write_text(text)
    with pytest.raises(FedBMError, match=sentence):
        load_partition(path, TOY)


def test_a_partition_of_ones_own_is_made_of_lists() -> None:
    partition = Partition([[3, 0], range(1, 3), []], "mine", held_out=[(5, 4)])
    arrays = Partition([np.array([0, 3]), np.array([1, 2]), np.array([], int)], "x", held_out=[np.array([4, 5])])
    assert [client.tolist() for client in partition.clients] == [[0, 3], [1, 2], []]
    assert [client.dtype for client in (*partition.clients, *partition.held_out)] == [np.int64] * 4
    assert partition.digest == arrays.digest
    assert "3 clients with 0–2 samples" in partition._repr_html_()


@pytest.mark.parametrize(
    "clients", [[0, 1], [[0.0, 1.0]], [[[0], [1]]], [[[0], [1, 2]]], [["a"]], [[True]], [], 5, None]
)
def test_a_partition_needs_whole_numbers_for_each_client(clients: Any) -> None:
    with pytest.raises(FedBMError, match=r"a partition needs a list of sample numbers for each client, such as"):
        Partition(clients, "mine")
