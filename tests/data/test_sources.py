"""The sources of images: the values of the column that makes the clients."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedbm.data.dataset import Dataset, load
from fedbm.data.partition import MAX_SOURCES, find_sources
from fedbm.data.partitioners import by_column, iid


def with_sites(values: list[str]) -> Dataset:
    """digits with the column "site": *values* by turns."""
    data = load("digits")
    return dataclasses.replace(data, columns={"site": np.resize(np.array(values), len(data.labels))})


def test_every_test_image_has_the_source_of_its_column() -> None:
    data = with_sites(["north", "east", "south"])
    partition = by_column(data.columns, data.indices("train"), "site")
    found = find_sources(data, partition)
    assert found is not None
    assert found.names == tuple(partition.settings["values"])
    assert [found.names[number] for number in found.numbers] == data.columns["site"][data.indices("test")].tolist()


def test_a_source_without_training_images_comes_last_and_an_empty_value_is_named() -> None:
    data = with_sites(["b", "c"])
    test = data.indices("test")
    site = data.columns["site"].astype("<U9")
    site[test] = np.resize(np.array(["a", "", "c"]), len(test))
    data = dataclasses.replace(data, columns={"site": site})
    found = find_sources(data, by_column(data.columns, data.indices("train"), "site"))
    assert found is not None
    assert found.names == ("c", "without site", "a"), "b has no test image"
    assert np.bincount(found.numbers).min() > 0


def test_without_a_column_or_with_too_many_values_there_are_none() -> None:
    data = with_sites(["a", "b"])
    train = data.indices("train")
    assert find_sources(data, iid(train, 2, 0)) is None
    partition = by_column(data.columns, train, "site")
    assert find_sources(dataclasses.replace(data, columns={}), partition) is None
    many = with_sites([f"writer {number}" for number in range(MAX_SOURCES + 1)])
    assert find_sources(many, by_column(many.columns, many.indices("train"), "site")) is None
