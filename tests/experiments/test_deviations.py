"""What is not like the paper is said of the runs it holds for, and of no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_outcomes import fake_outcome  # noqa: F401  puts fake_runs on the path
from fake_runs import fake_run

from fedbm.data.catalog.lookup import CATALOG
from fedbm.experiments.paper_numbers import _deviations, deviations
from fedbm.runs.config import keys
from fedbm.runs.reader import read_run

DEFAULTS = {"classifier": "distribution", "generator": True, "temperature": 12.5, "lambda_dis": 0.1, "pseudo_batch": 16}


def marks(folder: Path, method: str = "fedbm", data: str = "ham10000", **options: Any) -> set[str]:
    given = {**DEFAULTS, **options} if method == "fedbm" else {}
    return {one.mark for one in deviations(read_run(fake_run(folder, method, data=data, options=given)))}


@pytest.mark.parametrize("data", ["ham10000", "kvasir", "oct-c8", "pbc", "femnist", "chars74k"])
def test_not_tuned_where_nothing_is_recommended(data: str, tmp_path: Path) -> None:
    assert ("not tuned" in marks(tmp_path, data=data)) == ("temperature" not in CATALOG[data].recommends)


def test_not_tuned_is_said_of_fedbms_defaults_alone(tmp_path: Path) -> None:
    assert "not tuned" not in marks(tmp_path / "a", "fedavg")
    assert "not tuned" not in marks(tmp_path / "b", temperature=7.5)


def test_what_reads_no_text_is_not_marked_for_it(tmp_path: Path) -> None:
    """Random (Freezing): neither head nor generator reads any."""
    frozen = marks(tmp_path / "a", data="oct-c8", classifier="random", generator=False)
    assert not frozen & {"text", "prompts", "L_sem"}
    assert {"text", "prompts"} <= marks(tmp_path / "b", data="oct-c8", classifier="trained")  # its generator does
    assert {"text", "prompts", "L_sem"} <= marks(tmp_path / "c", data="oct-c8")
    assert "prompts" not in marks(tmp_path / "d", data="kvasir")


def test_dermamnists_split_is_known_by_its_size(tmp_path: Path) -> None:
    """HAM10000's own files are split by lesion, into 7,010 or 7,011 to train."""
    run = read_run(fake_run(tmp_path, data="ham10000"))
    sizes = {count: replace(run, dealt={**(run.dealt or {}), "counts": [[count - 7, 7]]}) for count in (7007, 7010)}
    assert {n: "split" in {one.mark for one in deviations(r)} for n, r in sizes.items()} == {7007: False, 7010: True}


@pytest.mark.parametrize(("data", "partition"), [("ham10000", "dirichlet"), ("femnist", "column")])
def test_a_partition_by_writer_is_not_said_to_be_drawn_by_the_seed(data: str, partition: str, tmp_path: Path) -> None:
    run = read_run(fake_run(tmp_path, data=data))
    run = replace(run, config={**run.config, "data": {**run.config["data"], "partition": partition}})
    [seeds] = [one for one in deviations(run) if one.mark == "seeds"]
    assert ("draws the partition" in seeds.ours) == (partition == "dirichlet")
    assert ("the same 50 writers" in seeds.ours) == (partition == "column")


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn", "central", "fedproto"])
def test_who_weights_clients_by_their_samples(method: str, tmp_path: Path) -> None:
    """SCAFFOLD and FedDyn take a plain mean of weights, as in print; central training and FedProto take none."""
    run = read_run(fake_run(tmp_path, method, data="ham10000", options={"weighting": "size"}))
    assert ("weights" in {one.mark for one in deviations(run)}) == (method == "fedavg")


def test_the_rule_that_chooses_the_round_is_every_rows(tmp_path: Path) -> None:
    assert "round" in marks(tmp_path, "fedavg")


def test_entries_name_what_there_is_and_a_difference() -> None:
    known = {f"{key.section}.{key.name}" for key in keys()}
    for entry in _deviations():
        where = {"methods", "data", "train_images", "when", "unless", "unless_train_images"}
        assert set(entry) <= {"mark", "paper", "ours", "why", *where}
        assert {*entry.get("when", {}), *entry.get("unless", {})} <= known
        assert entry["paper"] not in ("the same", entry["ours"])
