"""Tables of typed cells: best rows, cost with its range, rounds to a target, and columns that can be filled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_outcomes import fake_outcome
from fake_runs import edit, fake_run, scored, with_summary

from fedbm.engine.round_record import Traffic
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse
from fedbm.report.comparison import compare_outcome
from fedbm.report.document import Table
from fedbm.report.experiment_tables import results_table
from fedbm.report.figures.palette import assign_colours
from fedbm.report.format import format_cell
from fedbm.report.group import Group
from fedbm.report.grouping import group_runs
from fedbm.report.render.markdown import render_table
from fedbm.report.tables import (
    best_rows,
    cost_table,
    first_reached,
    metrics_table,
)
from fedbm.report.write import write_report
from fedbm.runs.run_view import read_run, read_runs


def only_group(runs: list[Path]) -> Group:
    (group,) = group_runs(read_runs(runs))
    return group


def test_central_is_not_best_even_on_a_tie(tmp_path: Path) -> None:
    group = only_group([run for method in ("central", "fedavg", "fedbm") for run in scored(tmp_path, method, [0.7])])
    assert best_rows(group.rows, "best", "f1") == [False, True, True]


@pytest.mark.parametrize("seeds", [{0}, {0, 2}], ids=["fewer", "others"])
def test_no_mean_is_best_if_rows_differ_in_their_seeds(tmp_path: Path, seeds: set[int]) -> None:
    """FedNH has other seeds, at which the other rows may be as good. The seeds of central training do not matter."""
    scores = {"central": [0.9, 0.9, 0.9], "fedavg": [0.9, 0.5], "fedbm": [0.9, 0.7]}
    runs = [run for method, f1 in scores.items() for run in scored(tmp_path, method, f1)]
    assert best_rows(only_group(runs).rows, "best", "f1") == [False, False, True]
    runs += [run for seed, run in enumerate(scored(tmp_path, "fednh", [0.8] * 3)) if seed in seeds]
    assert best_rows(only_group(runs).rows, "best", "f1") == [False] * 4


def test_every_metric_at_the_chosen_and_the_last_round_worked_by_hand(tmp_path: Path) -> None:
    flat = dict.fromkeys(("accuracy", "f1", "auc", "recall", "precision"), 0.5)
    runs = [fake_run(tmp_path, "fedavg", s, rounds=2, best=flat | {"f1": f1}) for s, f1 in enumerate((0.6, 0.8))]
    runs.append(fake_run(tmp_path, "fedbm", 0, rounds=2, best=flat | {"auc": None, "f1": 0.9}))
    for run in runs:
        edit(run / "summary.json", last={"round": 2, **flat})
    table = metrics_table(only_group(runs), "t", {"FedAvg": 0, "FedBM": 1})
    assert [(row.name, row.block) for row in table.rows] == [
        ("FedAvg", "At the round chosen on validation"),
        ("FedBM", "At the round chosen on validation"),
        ("FedAvg", "At the last round"),
        ("FedBM", "At the last round"),
    ]
    fedavg, fedbm, last, _ = ([format_cell(row.cells[c.key]) for c in table.columns] for row in table.rows)
    assert fedavg[2:] == ["50.0 ± 0.0", "70.0 ± 14.1", "50.0 ± 0.0", "50.0 ± 0.0", "50.0 ± 0.0"]
    assert (fedbm[0], fedbm[2:5]) == ("1", ["50.0", "90.0", "–"])
    assert last[:2] == ["2", "2"]


def timed(root: Path, seconds: list[float]) -> list[Path]:
    folders = [fake_run(root, "fedetf", seed, rounds=10) for seed in range(len(seconds))]
    for folder, value in zip(folders, seconds, strict=True):
        edit(folder / "summary.json", seconds=value)
    return folders


def test_wall_times_have_their_spread(tmp_path: Path) -> None:
    """One of three runs shared the device: (858 + 257 + 258) / 3 = 457.7 s is no run's time; the std is 346.7 s."""
    folders = timed(tmp_path / "runs", [858.0, 257.0, 258.0])
    (row,) = cost_table(only_group(folders), "t", {"FedETF": 0}).rows
    assert format_cell(row.cells["seconds"]) == "7 min 38 s ± 5 min 47 s"
    assert format_cell(row.cells["round_seconds"]) == "45.8 s ± 34.7 s"
    page = write_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<td>7 min 38 s<span class="pm"> ± 5 min 47 s</span></td>' in page


def test_one_run_has_no_spread(tmp_path: Path) -> None:
    (row,) = cost_table(only_group(timed(tmp_path / "runs", [75.0])), "t", {"FedETF": 0}).rows
    assert format_cell(row.cells["seconds"]) == "1 min 15 s"


def test_bytes_until_an_accuracy_is_reached(tmp_path: Path) -> None:
    run = read_run(fake_run(tmp_path, "fedavg", rounds=4))
    scored = [0.3, 0.5, 0.4, 0.7]
    rounds = tuple(
        replace(r, test={**(r.test or {}), "accuracy": a}, bytes=Traffic(10, 1))
        for r, a in zip(run.rounds, scored, strict=True)
    )
    run = replace(run, rounds=rounds)
    assert first_reached(run, 0.5) == (2, 22.0)
    assert first_reached(run, 0.6) == (4, 44.0)
    assert first_reached(run, 0.8) is None


# --- columns that no row can fill are left out ------------------------------------------------------------------------

ALWAYS = ["n", "accuracy", "f1", "last_f1", "last_quarter_f1"]
PAPER = ["paper_accuracy", "paper_f1"]
APART = ["accuracy_minus_paper", "f1_minus_paper"]
TEST = ["p", "p_holm", "effect_size"]


def own(root: Path, *methods: str, seeds: int = 3, **more: Any) -> Outcome:
    """A sweep of a user's own, with a row per method."""
    rows = "".join(f'[[rows]]\nname = "{method}"\nmethod = "{method}"\n' for method in methods)
    return fake_outcome(root, parse(f'[all]\ndata = "digits"\n{rows}', "mine", "mine.toml"), seeds=seeds, **more)


def table_of(cell: Group) -> Table:
    notes = {one: 1 for row in cell.rows for one in row.deviations}
    return results_table(cell, "t", assign_colours(row.name for row in cell.rows), notes)


def keys(cell: Group) -> set[str]:
    return {column.key for column in table_of(cell).columns}


@pytest.mark.parametrize(
    ("methods", "seeds", "more"),
    [
        (["fedbm"], 3, []),
        (["fedbm", "central"], 3, []),  # an upper bound is not compared
        (["fedbm", "fedavg"], 1, ["lead_minus_row_f1"]),  # one pair has a difference and nothing to test it by
        (["fedbm", "fedavg"], 2, ["lead_minus_row_f1", *TEST]),
    ],
)
def test_columns_of_ones_own_sweep(tmp_path: Path, methods: list[str], seeds: int, more: list[str]) -> None:
    (cell,) = compare_outcome(own(tmp_path, *methods, seeds=seeds, rounds=2))
    assert keys(cell) == {*ALWAYS, *more}


def test_columns_of_the_papers_experiments(tmp_path: Path) -> None:
    """All columns; a stand-in for the paper's data set has none of the paper's."""
    whole = fake_outcome(tmp_path / "a", "modules", seeds=2, rounds=2, absent={"oct-c8": "not here"})
    finished = [cell for cell in compare_outcome(whole) if cell.lead]
    assert all(keys(cell) >= {*ALWAYS, *PAPER, *APART, "lead_minus_row_f1"} for cell in finished)
    stand_in = fake_outcome(tmp_path / "b", "comparison-femnist", seeds=2, rounds=2, absent={"femnist": "not here"})
    first = compare_outcome(stand_in)[0]
    assert keys(first) == {*ALWAYS, "lead_minus_row_f1", *TEST}


def test_the_averaged_model_has_a_column_where_it_was_scored(tmp_path: Path) -> None:
    (cell,) = compare_outcome(own(tmp_path, "fedbm", "fedavg", seeds=2, rounds=2))
    rows = []
    for row in cell.rows:
        runs = tuple(with_summary(run, averaged={"round": 2, "accuracy": 0.6, "f1": 0.7}) for run in row.runs)
        rows.append(replace(row, runs=runs))
    averaged = replace(cell, rows=tuple(rows))
    assert keys(averaged) - keys(cell) == {"averaged_accuracy", "averaged_f1"}
    assert format_cell(table_of(averaged).rows[0].cells["averaged_f1"]) == "70.0 ± 0.0"


def test_a_single_row_has_no_dash(tmp_path: Path) -> None:
    (cell,) = compare_outcome(own(tmp_path, "fedbm", rounds=2))
    heads, _, line = render_table(table_of(cell))
    assert heads == "| Method | n | Accuracy | Macro-F1 | F1, last round | F1, last quarter |"
    assert line.startswith("| fedbm | 3 |")
    assert "–" not in line
