"""Runs with a client per value of a column: the test images of each source are scored, recorded and drawn."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import TinyBody, samples
from whole_runs import after_round, assert_same_run, folder_of, play

from fedbm.data.dataset import Dataset, load
from fedbm.engine.evaluate import join_scores, score_samples
from fedbm.report.document import Figures, Table
from fedbm.report.figures.palette import assign_colours
from fedbm.report.grouping import group_runs
from fedbm.report.render.html import render_html
from fedbm.report.render.markdown import render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.report.source_scores import source_sections
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.prediction import load_model
from fedbm.runs.run_config import make_config, to_sections
from fedbm.runs.run_record import read_record, write_record
from fedbm.runs.run_view import read_run, read_runs


@pytest.fixture(scope="module")
def sites(scans: Path) -> Dataset:
    """Two clinics: a third of the images is from the north."""
    data = load(scans, size=16, channels=1)
    return dataclasses.replace(data, columns={"site": np.resize(np.array(["north", "south", "south"]), 90)})


def plan_of(tiny: dict[str, Any], sites: Dataset, out: Path, **more: Any) -> Plan:
    own = {key: value for key, value in tiny.items() if key not in ("data", "size", "channels", "clients")}
    how = {"partition": "column", "partition_column": "site", "server_average": 0.6, "participation": 1.0}
    return make_plan(
        make_config(to_sections({**own, **how, **more, "out": str(out)})), dataset=sites, make_body=TinyBody
    )


def test_a_matrix_for_every_source_by_hand() -> None:
    """Five images of three classes: the first source has one error, the second misses its only image of class 2."""
    data = dataclasses.replace(samples([[0]] * 5, [0, 0, 1, 1, 2]), sources=np.array([0, 0, 0, 1, 1]))
    scores, found = score_samples(data, np.eye(3)[[0, 1, 1, 1, 1]])
    assert found.tolist() == [[[1, 1, 0], [0, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 1, 0], [0, 1, 0]]]
    assert scores["accuracy"] == 0.6
    joined = join_scores({"val": (scores, found[0]), "test": (scores, found)})
    assert joined.confusion == ((1, 1, 0), (0, 2, 0), (0, 1, 0))
    assert joined.by_source is not None
    assert np.array_equal(joined.by_source, found)


def test_details_have_the_predictions_on_every_source(tiny: dict[str, Any], sites: Dataset, tmp_path: Path) -> None:
    plan = plan_of(tiny, sites, tmp_path)
    play(plan)
    run = read_run(folder_of(plan))
    assert run.details is not None
    assert run.details.sources is not None
    assert [source.name for source in run.details.sources] == ["north", "south"]
    test = sites.indices("test")
    for averaged, moment in ((False, "best"), (True, "averaged")):
        model = load_model(run.path, device="cpu", make_body=TinyBody, averaged=averaged)
        guess = model.predict(sites.images[test]).argmax(axis=1)
        for source in run.details.sources:
            mask = sites.columns["site"][test] == source.name
            expected = np.zeros((3, 3), dtype=int)
            np.add.at(expected, (sites.labels[test][mask], guess[mask]), 1)
            assert np.array_equal(getattr(source, moment), expected), (source.name, moment)
    total = np.sum([source.last for source in run.details.sources], axis=0)
    assert np.array_equal(total, run.details.confusion.last)


def test_a_resumed_run_has_the_same_scores_by_source(tiny: dict[str, Any], sites: Dataset, tmp_path: Path) -> None:
    whole, broken = (plan_of(tiny, sites, tmp_path / out) for out in ("whole", "broken"))
    play(whole)
    for round_ in (1, 2, 3):
        play(broken, until=after_round(round_))
    play(broken)
    assert_same_run(folder_of(whole), folder_of(broken))


def test_a_run_without_a_column_has_none(tiny: dict[str, Any], sites: Dataset, tmp_path: Path) -> None:
    plan = plan_of(tiny, sites, tmp_path, partition="iid", partition_column="", clients=2)
    play(plan)
    assert json.loads((folder_of(plan) / "details.json").read_text())["sources"] is None
    report = runs_report([read_run(folder_of(plan))])
    assert "Source by source" not in render_html(report)


def test_the_table_by_source_has_rows_without_an_averaged_model(
    tiny: dict[str, Any], sites: Dataset, tmp_path: Path
) -> None:
    plans = [plan_of(tiny, sites, tmp_path, method=m, server_average=a) for m, a in (("fedavg", 0.6), ("fedproto", 0))]
    for plan in plans:
        play(plan)
    [group] = group_runs(read_runs([folder_of(plan) for plan in plans]))
    [section] = source_sections(group, "g", assign_colours(["FedAvg", "FedProto"]))
    [table] = [block for block in section.blocks if isinstance(block, Table)]
    assert [row.name for row in table.rows] == ["FedAvg", "FedProto"] * 2
    counts = [row.cells["images"].value for row in table.rows]
    assert (counts[1::2], None in counts[::2]) == ([None] * 2, False)  # each client's model scores every image
    assert table.caption == "At the round chosen on validation."


def test_report_and_record_show_every_source(tiny: dict[str, Any], sites: Dataset, tmp_path: Path) -> None:
    plans = [plan_of(tiny, sites, tmp_path, method=m, seed=s) for m in ("fedavg", "fedetf") for s in (0, 1)]
    for plan in plans:
        play(plan)
    runs = read_runs([folder_of(plan) for plan in plans])
    for run in runs:
        write_record(run, tmp_path / "records" / f"{run.id}.json")
    records = [read_record(tmp_path / "records" / f"{run.id}.json") for run in runs]
    pages = [render_markdown(runs_report(some)).partition("Source by source")[2] for some in (runs, records)]
    assert pages[0]
    assert pages[0] == pages[1]

    [group] = group_runs(records)
    [section] = source_sections(group, "g", assign_colours(["FedAvg", "FedETF"]))
    figures, table = section.blocks
    assert isinstance(figures, Figures)
    assert isinstance(table, Table)
    images = [int(np.sum(sites.columns["site"][sites.indices("test")] == site)) for site in ("north", "south")]
    blocks = ("north", "south")
    assert [(row.block, row.name) for row in table.rows] == [(b, m) for b in blocks for m in ("FedAvg", "FedETF")]
    assert [row.cells["images"].value for row in table.rows] == [str(n) for n in images for _ in range(2)]
    shares = []
    for run in runs[:2]:
        assert run.details is not None
        assert run.details.sources is not None
        matrix = np.array(run.details.sources[0].averaged)
        shares.append(np.trace(matrix) / matrix.sum())
    assert table.rows[0].cells["accuracy"].value == pytest.approx(np.mean(shares))
    assert table.caption == "Averaged model, after the last round."
    drawn = next(iter(figures.panels.values()))[0].draw()
    assert all(f">{block}<" in drawn for block in blocks)
    assert drawn.count(">FedETF<") == 2
