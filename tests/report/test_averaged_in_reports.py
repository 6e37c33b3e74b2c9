"""Where runs have an averaged model, every table, curve and file of a report shows it; otherwise none mentions it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_runs import edit, fake_run, two_methods

from fedbm.report.comparison_checks import check_comparison
from fedbm.report.document import Report
from fedbm.report.figures.curves import Curve, shared_plot
from fedbm.report.format import format_cell
from fedbm.report.grouping import group_runs
from fedbm.report.render.csv import render_csv
from fedbm.report.render.latex import render_latex
from fedbm.report.render.markdown import render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.report.tables import metrics_table
from fedbm.report.write import write_report
from fedbm.runs.run_view import read_runs
from fedbm.runs.tracking import scalars

BLOCK = "Averaged model, after the last round"


def report_of(folders: list[Path]) -> Report:
    return runs_report(read_runs(folders))


def with_average(folder: Path, f1: float, train: bool = True) -> Path:
    """Give a made-up run an averaged model with this macro-F1 after the last round."""
    path = folder / "rounds.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        share = record["round"] / len(records)
        scores = {side: {**record[side], "f1": share * f1, "accuracy": share * (f1 + 0.1)} for side in ("val", "test")}
        record["averaged"] = scores
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    edit(folder / "summary.json", averaged={"round": len(records), **records[-1]["averaged"]["test"]})
    config = (folder / "config.toml").read_text()
    if train:
        (folder / "config.toml").write_text(config.replace("[train]\n", "[train]\nserver_average = 0.9\n"))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """FedAvg and FedBM, averaged to 0.6 and 0.7 with seed 0, and 0.1 more with seed 1."""
    made = two_methods(tmp_path, 2)
    for folder, f1 in zip(made, (0.6, 0.7, 0.7, 0.8), strict=True):
        with_average(folder, f1)
    return made


def averaged_cells(folders: list[Path]) -> dict[str, list[str]]:
    """Return accuracy and macro-F1 of the averaged model by row."""
    [group] = group_runs(read_runs(folders))
    rows = metrics_table(group, "t", {row.name: 0 for row in group.rows}).rows
    return {row.name: [format_cell(row.cells[key]) for key in ("accuracy", "f1")] for row in rows if row.block == BLOCK}


def test_tables(folders: list[Path]) -> None:
    assert averaged_cells(folders) == {"FedAvg": ["75.0 ± 7.1", "65.0 ± 7.1"], "FedBM": ["85.0 ± 7.1", "75.0 ± 7.1"]}
    for render in (render_markdown, render_latex):
        assert BLOCK in render(report_of(folders))


def test_comma_separated(folders: list[Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(report_of(folders)))))
    assert [row["moment"] for row in rows] == ["best", "last", "averaged"] * 4
    assert [float(row["f1"]) for row in rows[2::3]] == pytest.approx([0.6, 0.7, 0.7, 0.8])
    assert {row["round"] for row in rows[2::3]} == {"6"}


def test_the_page(folders: list[Path], tmp_path: Path) -> None:
    page = write_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    for words in ("Averaged model, after the last round", "FedBM, averaged", "dotted: the averaged model"):
        assert words in page
    loss = page.partition("Training loss by round for ")[2].partition(";")[0]
    assert loss == "FedAvg, FedBM"  # it has no loss of its own


def test_some_rows_have_none(folders: list[Path], tmp_path: Path) -> None:
    """FedProto cannot be averaged: its cells are dashes, and the comparison is as fair as without."""
    proto = [fake_run(tmp_path, "fedproto", seed) for seed in range(2)]
    [group] = group_runs(read_runs([*folders, *proto]))
    assert [row.name for row in group.rows] == ["FedAvg", "FedProto", "FedBM"]
    assert averaged_cells([*folders, *proto])["FedProto"] == ["–", "–"]
    assert "Differences other than the method: none." in [found.sentence for found in check_comparison(group)]
    write_report([*folders, *proto], tmp_path / "page.html")


def test_a_run_with_and_one_without_are_told_apart(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    off = [fake_run(old, "fedavg", seed, train={"server_average": 0.0}) for seed in (0, 1)]
    runs = [*off, with_average(fake_run(new, "fedavg", 0), 0.5)]
    [group] = group_runs(read_runs(runs))
    names = [(row.name, len(row.runs)) for row in group.rows]
    assert names == [("FedAvg", 2), ("FedAvg · train.server_average=0.9", 1)]


def test_without_an_average_nothing_is_said_of_one(tmp_path: Path) -> None:
    made = two_methods(tmp_path, 2)
    for render in (render_markdown, render_csv, render_latex):
        assert "veraged" not in render(report_of(made))
    page = write_report(made, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "FedBM, averaged" not in page


def test_its_curve_is_dotted_and_has_no_band() -> None:
    lines: Any = (((1, 0.1), (2, 0.4)), ((1, 0.2), (2, 0.6)))
    drawn = [shared_plot([Curve("x", 0, lines, averaged=averaged)], "title", "axis") for averaged in (False, True)]
    assert ["stroke-dasharray" in svg for svg in drawn] == [False, True]
    assert ['opacity="0.12"' in svg for svg in drawn] == [True, False]


def test_tensorboard_gets_it(folders: list[Path]) -> None:
    [run, *_] = read_runs(folders)
    last = run.rounds[-1]
    assert last.averaged is not None
    found = dict(scalars(replace(last, averaged=replace(last.averaged, scored=(0, 1)))))
    assert found["averaged test/f1"] == pytest.approx(0.6)
    assert not any("scored" in name for name in found)
