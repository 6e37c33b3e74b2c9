"""Grouping of runs: what is averaged with what."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_runs import edit, fake_run, plain

from fedbm import ResNet18, simulate
from fedbm.errors import FedBMError
from fedbm.methods import FedAvg
from fedbm.report.comparison_checks import check_comparison
from fedbm.report.group import Group
from fedbm.report.grouping import group_runs
from fedbm.runs.run_view import read_runs


def only_group(runs: list[Path]) -> Group:
    (group,) = group_runs(read_runs(runs))
    return group


def test_runs_are_grouped_by_data_and_partition(tmp_path: Path) -> None:
    runs = [
        fake_run(tmp_path, rounds=2),
        fake_run(tmp_path, rounds=2, beta=0.1),
        fake_run(tmp_path, rounds=2, beta=None),
        fake_run(tmp_path, rounds=2, clients=4),
        fake_run(tmp_path, rounds=2, data="pbc"),
    ]
    assert [plain(group.title) for group in group_runs(read_runs(runs))] == [
        "digits, Dirichlet β = 0.05, 10 clients",
        "digits, Dirichlet β = 0.05, 4 clients",
        "digits, Dirichlet β = 0.1, 10 clients",
        "digits, iid, 10 clients",
        "pbc, Dirichlet β = 0.05, 10 clients",
    ]


def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / lr, rounds=2, train={"lr": float(lr)}) for lr in ("0.01", "0.1")]
    group = only_group(runs)
    assert [row.name for row in group.rows] == ["FedBM", "FedBM · train.lr=0.1"]
    assert any(
        "Differences other than the method: train.lr (0.01, 0.1)" in found.sentence for found in check_comparison(group)
    )


def test_rows_follow_the_methods_and_a_method_comes_before_its_variants(tmp_path: Path) -> None:
    options = [{"generator_width": 32, "generator": False}, {"generator_width": 32}, {"generator": False, "a": 1}]
    runs = [fake_run(tmp_path, "fedbm", rounds=2, options=one) for one in options]
    runs += [fake_run(tmp_path, method, rounds=2) for method in ("mine", "fedavg")]
    names = [row.name for row in only_group(runs).rows]
    assert names[0] == "FedAvg"
    assert names[1] == "FedBM · generator_width=32"
    assert names[-1] == "mine"


def test_a_run_and_its_copy_are_refused(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", rounds=2)
    shutil.copytree(run, tmp_path / "b")
    with pytest.raises(FedBMError, match="are the same run"):
        group_runs(read_runs([run, tmp_path / "b"]))


def test_an_unfinished_run_joins_the_group_of_its_data_whatever_its_path(tmp_path: Path) -> None:
    done = fake_run(tmp_path, data="/somewhere/pbc_128.npz", rounds=3, options={"generator": False})
    edit(done / "summary.json", data="pbc", label="fedbm · generator=no")
    half = fake_run(tmp_path, data="/somewhere/pbc_128.npz", seed=1, rounds=3, done=1, options={"generator": False})
    for run in (done, half):
        edit(run / "partition.json", of={"data": "pbc"})  # as every run writes it before its first round
    group = only_group([done, half])
    assert group.title.startswith("pbc,")
    assert group.unfinished[0].label == group.rows[0].runs[0].label


def test_code_and_body_of_ones_own_make_another_row(tmp_path: Path) -> None:
    """The same name and settings, other code: neither the same run nor another seed of it."""

    @dataclass(frozen=True)
    class Mine(FedAvg):
        name: ClassVar[str] = "mine"

    def play(width: int, seed: int) -> Path:
        tiny: dict[str, Any] = {"size": 16, "batch": 64, "rounds": 1, "clients": 2, "beta": 5.0, "out": tmp_path}
        return simulate("digits", method=Mine(), body=lambda: ResNet18(1, width), seed=seed, **tiny).path

    runs = [play(4, 0), play(8, 0), play(8, 1)]
    group = only_group(runs)
    assert sorted(len(row.runs) for row in group.rows) == [1, 2]
    assert "own.body=" in group.rows[0].name
    assert any("own body" in finding.sentence for finding in check_comparison(group) if not finding.holds)


def with_checksum(path, checksum):
    file = path / "partition.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "of": {"data": "scans", "checksum": checksum}}))
    return path


def test_other_images_under_the_same_name_are_another_group(tmp_path):
    one = with_checksum(fake_run(tmp_path, "fedavg", 0), "a" * 64)
    two = with_checksum(fake_run(tmp_path, "fedavg", 1), "b" * 64)
    three = with_checksum(fake_run(tmp_path, "fedavg", 2), "b" * 64)
    first, second = group_runs(read_runs([one, two, three]))
    assert [len(group.rows[0].runs) for group in (first, second)] == [1, 2]
    assert first.title.endswith(", data aaaaaaaa")
    assert second.title.endswith(", data bbbbbbbb")
    [alone] = group_runs(read_runs([two, three]))
    assert "data bbbb" not in alone.title


def test_runs_with_and_without_a_setting_are_separate_rows(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path, rounds=2), fake_run(tmp_path, rounds=2, seed=1, train={"freeze_batchnorm_after": 5})]
    names = {row.name for row in only_group(runs).rows}
    assert names == {"FedBM", "FedBM · train.freeze_batchnorm_after=5"}


def test_a_run_older_than_a_setting_has_its_default(tmp_path: Path) -> None:
    """Runs of two versions are one row, and their settings do not differ."""
    runs = [fake_run(tmp_path, rounds=2), fake_run(tmp_path, rounds=2, seed=1, train={"freeze_batchnorm_after": 0})]
    group = only_group(runs)
    assert [row.name for row in group.rows] == ["FedBM"]
    assert "Differences other than the method: none." in [found.sentence for found in check_comparison(group)]


def with_settings(path: Path, **values: Any) -> Path:
    """Write settings such as model_width=8 into the configuration of a run."""
    file = path / "config.toml"
    text = file.read_text()
    for key, value in values.items():
        section, _, name = key.partition("_")
        lines = [line for line in text.splitlines() if not line.startswith(f"{name} = ")]
        lines.insert(lines.index(f"[{section}]") + 1, f"{name} = {json.dumps(value)}")
        text = "\n".join(lines)
    file.write_text(text)
    return path


def names_of(*runs: Path) -> list[str]:
    return [row.name for row in only_group(list(runs)).rows]


def test_a_label_has_no_setting_that_the_method_never_reads(tmp_path: Path) -> None:
    paths = ["colon.safetensors", "../w/colon.safetensors"]
    for method, name in (("fedavg", "FedAvg"), ("fedbm", "FedBM")):
        runs = [fake_run(tmp_path / method / str(k), method, rounds=2) for k in range(2)]
        for run, path, width in zip(runs, paths, (8, 16), strict=True):
            with_settings(run, language_concept_file=path, model_width=width)
        assert names_of(*runs) == [f"{name} · model.width=16", f"{name} · model.width=8"]
    other = with_settings(fake_run(tmp_path / "other", "fedbm", rounds=2), language_concept_file="skin.safetensors")
    with_settings(other, model_width=16)
    assert names_of(runs[1], other) == [
        "FedBM · language.concept_file=colon.safetensors",
        "FedBM · language.concept_file=skin.safetensors",
    ]


def test_variants_show_the_settings_in_which_they_differ(tmp_path: Path) -> None:
    """Options that all rows of a method share are left out; a method with one row is its name alone."""
    wide = fake_run(tmp_path, "fedbm", rounds=2, options={"generator_steps": 30, "generator_width": 32})
    small = fake_run(tmp_path / "b", "fedbm", rounds=2, options={"generator_steps": 5, "generator_width": 32})
    fedavg = fake_run(tmp_path, "fedavg", rounds=2)
    assert names_of(wide, fedavg) == ["FedAvg", "FedBM"]
    with_settings(small, model_width=8)
    assert names_of(wide, small, fedavg) == [
        "FedAvg",
        "FedBM · generator_steps=30, model.width=16",
        "FedBM · generator_steps=5, model.width=8",
    ]


def test_a_path_of_a_partition_does_not_split_a_row(tmp_path: Path) -> None:
    """A run with a partition made in Python has the path of its own partition.json in its settings."""
    runs = [fake_run(tmp_path, rounds=2, seed=seed) for seed in (0, 1)]
    for run in runs:
        with_settings(run, data_partition_file=str(run / "partition.json"))
    assert names_of(*runs) == ["FedBM"]
