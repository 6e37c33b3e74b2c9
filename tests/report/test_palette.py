"""Colours and dashes: a line is known by them, so no two of a figure may share both."""

from __future__ import annotations

import pytest

from fedbm.experiments.spec import find_experiment, shipped_experiments
from fedbm.methods import METHODS
from fedbm.report.figures.palette import STATED, assign_colours, dash_pattern, mark_shape
from fedbm.report.figures.svg import series

TITLES = [method.title for method in METHODS.values()]


def look(number: int) -> tuple[str, tuple[int, ...]]:
    return series(number), dash_pattern(number)


def dot(number: int) -> tuple[str, tuple[str, bool]]:
    return series(number), mark_shape(number)


def test_every_method_states_its_own_title() -> None:
    assert all("title" in vars(method) for method in METHODS.values())
    assert len(set(TITLES)) == len(METHODS)


def test_the_methods_differ_and_a_stated_colour_belongs_to_one() -> None:
    numbers = assign_colours(TITLES)
    assert len({look(number) for number in numbers.values()}) == len(METHODS)
    assert len({dot(number) for number in numbers.values()}) == len(METHODS)
    for title, stated in STATED.items():
        assert numbers[title] == stated
        shared = [name for name, number in numbers.items() if series(number) == series(stated)]
        assert shared == [title]
        assert dash_pattern(stated) == ()


@pytest.mark.parametrize("name", shipped_experiments())
def test_no_two_rows_of_an_experiment_look_alike(name: str) -> None:
    rows = list(find_experiment(name).rows)
    assert len({look(number) for number in assign_colours(rows).values()}) == len(rows)
    assert len({dot(number) for number in assign_colours(rows).values()}) == len(rows)


def test_the_methods_of_the_paper_look_the_same_with_and_without_the_others() -> None:
    paper = list(find_experiment("comparison-ham10000").rows)
    alone, among_all = assign_colours(paper), assign_colours(TITLES)
    assert {name: among_all[name] for name in paper} == alone
    assert [alone[name] for name in ("FedAvg", "FedRep", "FedROD", "FedETF")] == [1, 5, 8, 11]


def test_however_many_there_are_they_differ() -> None:
    names = [*TITLES, *(f"variant {number}" for number in range(60))]
    assert len({look(number) for number in assign_colours(names).values()}) == len(METHODS) + 60


def test_variants_do_not_change_the_colours_of_methods() -> None:
    variants = [f"FedBM · pseudo_batch={n}" for n in range(26)]
    assert assign_colours(["FedAvg", "FedRep", *variants])["FedRep"] == assign_colours(["FedAvg", "FedRep"])["FedRep"]
