"""Experiments with averaged models: a pair of columns in every table, and moments of their own for programs."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from fake_outcomes import fake_outcome
from fake_runs import with_summary

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse
from fedbm.report.experiments_report import experiments_report
from fedbm.report.render.csv import render_csv
from fedbm.report.render.html import render_html
from fedbm.report.render.latex import render_latex
from fedbm.report.render.markdown import render_markdown

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
            run = replace(with_summary(run, averaged=averaged), averaged_last_quarter={**averaged, "f1": f1 / 2})
        results.append(replace(result, run=run))
    return replace(without, results=tuple(results))


def test_two_columns_where_a_run_has_one(outcome: Outcome, without: Outcome) -> None:
    text = render_markdown(experiments_report([outcome]))
    heads, _, *rows = (line.strip("| ").split(" | ") for line in text[text.index("| Method | n |") :].splitlines()[:5])
    place = heads.index("Accuracy, averaged")
    assert heads[place + 1] == "F1, averaged"
    assert [row[place : place + 2] for row in rows] == [
        ["61.0 ± 1.0", "51.0 ± 1.0"],
        ["–", "–"],
        ["**81.0 ± 1.0**", "**71.0 ± 1.0**"],
    ]
    report = experiments_report([outcome])
    page = render_html(report)
    assert ">F1, averaged</th>" in page
    assert '<strong>71.0</strong><span class="pm"> ± 1.0</span>' in page
    assert "F1, averaged" in render_latex(report)
    for render in (render_html, render_markdown, render_latex):
        assert "F1, averaged" not in render(experiments_report([without]))


def test_programs_read_the_difference_of_averaged_models(outcome: Outcome, without: Outcome) -> None:
    lines = list(csv.DictReader(render_csv(experiments_report([outcome])).splitlines()))
    found = {(line["row"], line["round"]): line for line in lines}
    assert len(found) == 3 * 5
    assert float(found["FedBM", "averaged"]["f1"]) == pytest.approx(0.71)
    assert float(found["FedBM", "averaged_last_quarter"]["f1"]) == pytest.approx(0.355)
    assert float(found["FedAvg", "averaged"]["lead_minus_row_f1"]) == pytest.approx(0.2)
    assert found["FedProto", "averaged"]["f1"] == found["FedProto", "averaged"]["lead_minus_row_f1"] == ""
    assert {line["round"] for line in csv.DictReader(render_csv(experiments_report([without])).splitlines())} == {
        "best",
        "last",
        "last_quarter",
    }
