"""Colours and dashes: a line is known by them, so no two of a figure may share both."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_runs import fake_run

from fedbm.experiments.spec import find_experiment, shipped
from fedbm.report.figures.palette import METHODS, dashes, numbers_of
from fedbm.report.figures.svg import series
from fedbm.report.grouping import NAMES, compare
from fedbm.report.render.html import colours_of
from fedbm.runs.reader import read_runs


def look(number: int) -> tuple[str, tuple[int, ...]]:
    return series(number), dashes(number)


def test_the_methods_have_looks_of_their_own() -> None:
    assert set(METHODS) == set(NAMES.values())
    assert len({look(number) for number in METHODS.values()}) == len(NAMES)
    first = series(METHODS["FedBM"])
    assert [name for name, number in METHODS.items() if series(number) == first] == ["FedBM"]
    assert dashes(METHODS["FedBM"]) == ()


@pytest.mark.parametrize("name", shipped())
def test_no_two_rows_of_an_experiment_look_alike(name: str) -> None:
    rows = [row.name for row in find_experiment(name).rows]
    numbers = numbers_of(rows)
    assert len({look(number) for number in numbers.values()}) == len(rows)
    assert all(numbers[row] == METHODS[row] for row in rows if row in METHODS)


def test_however_many_there_are_they_differ() -> None:
    names = [*NAMES.values(), *(f"variant {number}" for number in range(60))]
    assert len({look(number) for number in numbers_of(names).values()}) == 71


def test_a_page_of_runs_gives_the_methods_theirs(tmp_path: Path) -> None:
    """Many variants of FedBM do not push the baselines to other colours."""
    runs = [fake_run(tmp_path, method, rounds=2) for method in ("fedavg", "fedrep", "fedbm")]
    runs += [fake_run(tmp_path, "fedbm", rounds=2, options={"pseudo_batch": n}) for n in range(1, 27)]
    found = colours_of(compare(read_runs(runs)))
    assert {name: found[name] for name in ("FedBM", "FedAvg", "FedRep")} == {
        name: METHODS[name] for name in ("FedBM", "FedAvg", "FedRep")
    }
    assert len({look(number) for number in found.values()}) == 29
