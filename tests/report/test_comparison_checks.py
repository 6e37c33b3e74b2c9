"""Comparison checks: what holds is stated, what does not is a warning."""

from __future__ import annotations

import json
from pathlib import Path

from fake_runs import edit, fake_run, two_methods

from fedbm.report.comparison_checks import check_comparison
from fedbm.report.group import Group
from fedbm.report.grouping import group_runs
from fedbm.runs.run_view import read_runs


def only_group(runs: list[Path]) -> Group:
    (group,) = group_runs(read_runs(runs))
    return group


def test_every_check_holds_for_runs_that_differ_in_the_method(tmp_path: Path) -> None:
    found = check_comparison(only_group(two_methods(tmp_path, seeds=2, rounds=2)))
    assert [finding.holds for finding in found] == [True] * 5


def test_a_check_that_does_not_hold_is_a_warning(tmp_path: Path) -> None:
    runs = two_methods(tmp_path, seeds=2, rounds=2)
    clients = json.loads((runs[0] / "partition.json").read_text())["clients"]
    edit(runs[0] / "partition.json", clients=clients[::-1])
    edit(runs[1] / "environment.json", torch="9.9")
    runs[3] = fake_run(tmp_path / "more", "fedbm", 2, rounds=2, dropped=2)
    warnings = " ".join(finding.sentence for finding in check_comparison(only_group(runs)) if not finding.holds)
    assert "Seeds, at best several and the same in every row: FedAvg 0, 1; FedBM 0, 2." in warnings
    assert "Seeds at which clients have different samples: 0." in warnings
    assert "torch (2.6.0, 9.9)" in warnings
    assert "2 of FedBM" in warnings
