"""Clients that never train: the global model is scored on each of them, and this is recorded and drawn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import TinyBody
from whole_runs import after_round, assert_same_run, folder_of, play

import fedbm
from fedbm.data.dataset import Dataset, load
from fedbm.errors import FedBMError
from fedbm.report.document import Table
from fedbm.report.figures.palette import assign_colours
from fedbm.report.grouping import group_runs
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
    data = load(scans, size=16, channels=1)
    return dataclasses.replace(data, columns={"site": np.resize(np.array(["north", "south", "east"]), 90)})


def plan_of(tiny: dict[str, Any], sites: Dataset, out: Path, **more: Any) -> Plan:
    own = {key: value for key, value in tiny.items() if key not in ("data", "size", "channels")}
    how = {"server_average": 0.6, "held_out": 2, "clients": 3, "participation": 1.0}
    return make_plan(
        make_config(to_sections({**own, **how, **more, "out": str(out)})), dataset=sites, make_body=TinyBody
    )


COLUMN = {"partition": "column", "partition_column": "site", "held_out": 0, "held_out_values": "south"}


def test_held_out_clients_are_in_addition_to_those_that_train(tiny: dict[str, Any], sites: Dataset, tmp_path: Path):
    whole = plan_of(tiny, sites, tmp_path, clients=5, held_out=0)
    plan = plan_of(tiny, sites, tmp_path)
    assert [c.tolist() for c in plan.partition.clients] == [c.tolist() for c in whole.partition.clients[:3]]
    assert [c.tolist() for c in plan.partition.held_out] == [c.tolist() for c in whole.partition.clients[3:]]
    assert plan.config.data.clients == 3
    assert make_plan(plan.config, dataset=sites, make_body=TinyBody).id == plan.id
    assert plan.id not in (whole.id, plan_of(tiny, sites, tmp_path, held_out=0).id)


@pytest.mark.parametrize("more", [{}, COLUMN], ids=["drawn", "column"])
def test_details_have_the_predictions_on_every_held_out_client(
    tiny: dict[str, Any], sites: Dataset, tmp_path: Path, more: dict[str, Any]
) -> None:
    plan = plan_of(tiny, sites, tmp_path, **{**more, **({"clients": 2} if more else {})})
    play(plan)
    run = read_run(folder_of(plan))
    assert run.details is not None
    assert run.details.held_out is not None
    assert tuple(client.name for client in run.details.held_out) == plan.partition.held_out_names
    for averaged, moment in ((False, "best"), (True, "averaged")):
        model = load_model(run.path, device="cpu", make_body=TinyBody, averaged=averaged)
        for client, own in zip(run.details.held_out, plan.partition.held_out, strict=True):
            guess = model.predict(sites.images[own]).argmax(axis=1)
            expected = np.zeros((3, 3), dtype=int)
            np.add.at(expected, (sites.labels[own], guess), 1)
            assert np.array_equal(getattr(client, moment), expected), (client.name, moment)
    trained = {client.client for record in run.rounds for client in record.clients}
    assert trained == set(range(plan.config.data.clients))


def test_images_of_a_held_out_site_are_in_no_other_score(tiny: dict[str, Any], sites: Dataset, tmp_path: Path) -> None:
    """They would choose the round otherwise."""
    plan = plan_of(tiny, sites, tmp_path, **COLUMN, clients=2)
    for subset in ("val", "test"):
        kept = plan.partition.scored_samples(sites, subset)
        expected = [i for i in sites.indices(subset) if sites.columns["site"][i] != "south"]
        assert kept.tolist() == expected
    play(plan)
    details = read_run(folder_of(plan)).details
    assert details is not None
    assert np.sum(details.confusion.last) == len(plan.partition.scored_samples(sites, "test"))
    assert details.held_out is not None
    assert np.sum(details.held_out[0].last) == np.sum(sites.columns["site"] == "south")
    assert details.sources is not None
    assert [source.name for source in details.sources] == ["east", "north"]


@pytest.mark.parametrize("subset", ["val", "test"])
def test_images_of_other_sites_must_remain_to_score(
    tiny: dict[str, Any], sites: Dataset, tmp_path: Path, subset: str
) -> None:
    names = np.array(sites.columns["site"], copy=True)
    names[sites.indices(subset)] = "south"
    data = dataclasses.replace(sites, columns={"site": names})
    with pytest.raises(FedBMError, match=f"scans has no {subset} images outside of the held-out south"):
        plan_of(tiny, data, tmp_path, **COLUMN, clients=2)


def test_a_resumed_run_has_the_same_scores(tiny: dict[str, Any], sites: Dataset, tmp_path: Path) -> None:
    whole, broken = (plan_of(tiny, sites, tmp_path / out, feature_shift="noise") for out in ("whole", "broken"))
    play(whole)
    for round_ in (1, 3):
        play(broken, until=after_round(round_))
    play(broken)
    assert_same_run(folder_of(whole), folder_of(broken))


def test_several_global_models_are_scored_as_on_the_test_images(
    tiny: dict[str, Any], sites: Dataset, tmp_path: Path
) -> None:
    """FedProto scores the model of every client, and the matrices are summed."""
    plan = plan_of(tiny, sites, tmp_path, method="fedproto", server_average=0.0)
    play(plan)
    details = read_run(folder_of(plan)).details
    assert details is not None
    assert details.held_out is not None
    images = [len(own) for own in plan.partition.held_out]
    assert [int(np.sum(client.last)) for client in details.held_out] == [3 * n for n in images]


def test_report_and_record_show_every_held_out_client(tiny: dict[str, Any], sites: Dataset, tmp_path: Path) -> None:
    plans = [plan_of(tiny, sites, tmp_path, method=method, rounds=2) for method in ("fedavg", "fedetf")]
    for plan in plans:
        play(plan)
    runs = read_runs([folder_of(plan) for plan in plans])
    for run in runs:
        write_record(run, tmp_path / "records" / f"{run.id}.json")
    records = [read_record(tmp_path / "records" / f"{run.id}.json") for run in runs]
    pages = [render_markdown(runs_report(some)).partition("Held-out clients")[2] for some in (runs, records)]
    assert pages[0]
    assert pages[0] == pages[1]
    [group] = group_runs(records)
    [section] = source_sections(group, "g", assign_colours(["FedAvg", "FedETF"]))
    table = section.blocks[1]
    assert isinstance(table, Table)
    images = [str(len(own)) for own in plans[0].partition.held_out for _ in range(2)]
    assert [(row.block, row.name) for row in table.rows] == [(b, m) for b in "34" for m in ("FedAvg", "FedETF")]
    assert [row.cells["images"].value for row in table.rows] == images


def test_a_shift_changes_training_and_the_run_id_but_not_the_data_set(
    tiny: dict[str, Any], sites: Dataset, tmp_path: Path
) -> None:
    plain, shifted, other = (
        plan_of(tiny, sites, tmp_path, rounds=1, **more)
        for more in ({}, {"feature_shift": "contrast"}, {"feature_shift": "contrast", "shift_strength": 0.9})
    )
    assert len({plain.id, shifted.id, other.id}) == 3
    losses = []
    for plan in (plain, shifted):
        play(plan)
        run = read_run(folder_of(plan))
        losses.append(run.rounds[0].loss)
        assert run.checksum == sites.checksum
    assert losses[0] != losses[1]
    assert read_run(folder_of(shifted)).client_partition.shift["kind"] == "contrast"


def test_a_partition_made_in_python(scans: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    """Its saved configuration refers to partition.json, which has the held-out clients and the shift."""
    data = fedbm.load(scans, size=16, channels=1)
    parts = fedbm.shards(data.labels, data.indices("train"), clients=5, shards_per_client=2, seed=0)
    parts = fedbm.shift_features(fedbm.hold_out(parts, 1), "blur", 0.5)
    run = fedbm.simulate(data, parts, method="fedavg", rounds=1, width=4, out=str(tmp_path), device="cpu")
    assert run.partition == "shards"
    assert run.clients == 4
    assert fedbm.load_partition(run.path / "partition.json", data).digest == parts.digest
    own = {key: value for key, value in tiny.items() if key in ("data", "method", "size", "channels", "width")}
    again = {**own, "rounds": 1, "partition": "file", "partition_file": str(run.path / "partition.json")}
    assert make_plan(make_config(to_sections(again))).id == run.id


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({**COLUMN, "held_out": 1}, "held_out only applies if partition is dirichlet, balanced, quantity, iid"),
        (
            {"held_out_values": "south"},
            "held_out_values only applies if partition is column, but it is dirichlet",
        ),
        ({**COLUMN, "held_out_values": "west"}, 'the column "site" has no value "west" to hold out'),
        ({**COLUMN, "clients": 3}, 'clients is 3, but the column "site" has 2'),
    ],
)
def test_mistakes(tiny: dict[str, Any], sites: Dataset, tmp_path: Path, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedBMError, match=sentence):
        plan_of(tiny, sites, tmp_path, **{"clients": 2, **more})
