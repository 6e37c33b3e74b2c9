"""Experiments with averaged models: a pair of columns in every table, and moments of their own for programs."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fedbm.experiments.analysis import columns
from fedbm.experiments.latex import latex
from fedbm.experiments.report import write_outcomes
from fedbm.experiments.tables import comma_separated, grid, markdown

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse

LEVEL = {"FedAvg": 0.5, "FedBM": 0.7}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    experiment = parse('title = "A grid"\nmethods = ["fedavg", "fedproto", "fedbm"]\n', "grid", "grid")
    return fake_outcome(tmp_path_factory.mktemp("runs"), experiment, rounds=4)


@pytest.fixture(scope="module")
def outcome(without: Outcome) -> Outcome:
    """Macro-F1 of the averaged model 0.5 and 0.7, in seeds 1 and 2 higher by 0.01 and 0.02; FedProto has none."""
    results = []
    for result in without.results:
        run = result.run
        assert run is not None
        assert run.summary is not None
        if result.row in LEVEL:
            f1 = LEVEL[result.row] + 0.01 * result.seed
            averaged = {**run.summary["last"], "f1": f1, "accuracy": f1 + 0.1}
            run = replace(
                run, summary={**run.summary, "averaged": averaged}, averaged_last_quarter={**averaged, "f1": f1 / 2}
            )
        results.append(replace(result, run=run))
    return replace(without, results=tuple(results))


def test_two_columns_where_a_run_has_one(outcome: Outcome, without: Outcome, tmp_path: Path) -> None:
    heads, *rows = grid(columns(outcome)[0])
    place = heads.index("Accuracy, averaged")
    assert heads[place + 1] == "F1, averaged"
    assert [row[place : place + 2] for row in rows] == [
        ["61.0 ± 1.0", "51.0 ± 1.0"],
        ["–", "–"],
        ["81.0 ± 1.0", "71.0 ± 1.0"],
    ]
    page = write_outcomes([outcome], tmp_path / "with.html", whole=False).read_text(encoding="utf-8")
    table = page[page.index('<table class="results measured">') : page.index("</table>")]
    assert ">F1, averaged</th>" in table
    assert "<strong>71.0 ± 1.0</strong>" in table
    assert "F1, averaged" in markdown([outcome])
    assert "F1, averaged" in latex([outcome])
    page = write_outcomes([without], tmp_path / "without.html", whole=False).read_text(encoding="utf-8")
    assert "F1, averaged" not in page + markdown([without]) + latex([without])


def test_programs_read_the_difference_of_averaged_models(outcome: Outcome, without: Outcome) -> None:
    lines = list(csv.DictReader(comma_separated([outcome]).splitlines()))
    found = {(line["row"], line["round"]): line for line in lines}
    assert len(found) == 3 * 5
    assert float(found["FedBM", "averaged"]["f1"]) == pytest.approx(0.71)
    assert float(found["FedBM", "averaged_last_quarter"]["f1"]) == pytest.approx(0.355)
    assert float(found["FedAvg", "averaged"]["lead_minus_row_f1"]) == pytest.approx(0.2)
    assert found["FedProto", "averaged"]["f1"] == found["FedProto", "averaged"]["lead_minus_row_f1"] == ""
    assert {line["round"] for line in csv.DictReader(comma_separated([without]).splitlines())} == {
        "best",
        "last",
        "last_quarter",
    }
