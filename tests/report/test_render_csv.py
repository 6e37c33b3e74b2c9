"""CSV: every number with all digits, a line per row and moment."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run

from fedbm.report.comparison import compare_outcome
from fedbm.report.experiments_report import experiments_report
from fedbm.report.render.csv import render_csv
from fedbm.report.runs_report import runs_report
from fedbm.runs.run_view import read_runs


def test_experiments_have_a_line_per_row_and_moment(tmp_path: Path) -> None:
    missing = {("FedBM", 2): ("failed", "it broke"), **{("w/o CGDE", seed): ("not run", "") for seed in range(3)}}
    absent = {"oct-c8": "not here"}
    outcome = fake_outcome(tmp_path, "modules", rounds=20, missing=missing, absent=absent)
    lines = list(csv.DictReader(render_csv(experiments_report([outcome])).splitlines()))
    title = compare_outcome(outcome)[0].title
    best, last, last_quarter = (one for one in lines if one["row"] == "w/o LKCC" and one["cell"] == title)
    assert (float(best["paper_accuracy_std"]), float(best["paper_f1"])) == pytest.approx((0.0974, 0.2118))
    assert float(best["f1_minus_paper"]) == pytest.approx(float(best["f1"]) - 0.2118)
    assert best["notes"].startswith("round, seeds, text, SGD, images, bf16, weights, ")
    assert best["lead"] == "FedBM"
    assert (last["round"], last_quarter["round"]) == ("last", "last_quarter")
    assert last["lead_minus_row_f1"]
    assert last["f1_minus_paper"] == last_quarter["f1_minus_paper"] == ""
    assert last_quarter["f1"] not in (best["f1"], last["f1"])
    assert {one["missing"] for one in lines if one["row"] == "w/o CGDE"} == {"not run", "data or model not here"}
    assert (lines[0]["row"], lines[0]["missing"]) == ("FedBM", "failed")
    assert lines[0]["missing_in_words"] == "seed 2: failed: it broke"
    assert {one["command"] for one in lines} == {"fedbm reproduce modules --data-dir DIR"}


def test_what_has_no_record_is_a_line_where_all_records_are_given(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path, "precision", seeds=1, rounds=2)
    lines = list(csv.DictReader(render_csv(experiments_report([outcome], elsewhere=())).splitlines()))
    (pbc,) = (one for one in lines if one["experiment"] == "comparison-pbc")
    assert (pbc["missing"], pbc["command"], pbc["f1"]) == (
        "not run",
        "fedbm reproduce comparison-pbc --data-dir DIR",
        "",
    )


def test_runs_have_a_line_per_moment_and_unfinished_ones_their_state(tmp_path: Path) -> None:
    runs = [
        fake_run(tmp_path, method, rounds=4, data="pets", done=done)
        for method, done in (("fedavg", None), ("fedbm", 2))
    ]
    lines = list(csv.DictReader(render_csv(runs_report(read_runs(runs))).splitlines()))
    assert [(one["method"], one["moment"], one["state"]) for one in lines] == [
        ("fedavg", "best", "finished"),
        ("fedavg", "last", "finished"),
        ("fedbm", "", "unfinished, 2 of 4 rounds"),
    ]
    assert lines[1]["round"] == "4"
    assert 0 < float(lines[0]["f1"]) < 1
    assert lines[2]["f1"] == ""
