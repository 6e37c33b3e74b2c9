"""Runs read, put together and put into words: what is averaged with what, and what is said about it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_runs import METRICS, edit, fake_run, plain, scored, two_methods

from fedbm import ResNet18, simulate
from fedbm.errors import FedBMError
from fedbm.methods import FedAvg
from fedbm.report.checks import findings
from fedbm.report.grouping import Group, compare
from fedbm.report.tables import lines, markdown_table
from fedbm.report.text import headline, percent, points, seed_by_seed
from fedbm.runs.reader import last_quarter_scores, read_run, read_runs
from fedbm.runs.record import read_record, write_record


def only_group(runs: list[Path]) -> Group:
    (group,) = compare(read_runs(runs))
    return group


def test_central_is_not_best_even_on_a_tie(tmp_path: Path) -> None:
    group = only_group([run for method in ("central", "fedavg", "fedbm") for run in scored(tmp_path, method, [0.7])])
    assert [line.cells[1].best for line in lines(group, "best")] == [False, True, True]


def test_markdown_table_worked_by_hand(tmp_path: Path) -> None:
    flat = dict.fromkeys(METRICS, 0.5)
    runs = [fake_run(tmp_path, "fedavg", s, rounds=2, best=flat | {"f1": f1}) for s, f1 in enumerate((0.6, 0.8))]
    runs.append(fake_run(tmp_path, "fedbm", 0, rounds=2, best=flat | {"auc": None, "f1": 0.9}))
    runs += [fake_run(tmp_path, "fedprox", s, rounds=2, best=flat) for s in (0, 1)]
    unfinished = fake_run(tmp_path, "fedbm", 1, rounds=2, done=1)
    for run in runs:
        edit(run / "summary.json", last={"round": 2, **flat})
    assert markdown_table([*runs, unfinished]).splitlines() == [
        "**digits, Dirichlet β\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}0.05, 10 clients**",
        "",
        "| Method | Seeds | Accuracy | Macro-F1 | AUC | Recall | Precision "
        "| Accuracy, last round | Macro-F1, last round |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| FedAvg | 2 | **50.0 ± 0.0** | **70.0 ± 14.1** | **50.0 ± 0.0** | **50.0 ± 0.0** | **50.0 ± 0.0** "
        "| **50.0 ± 0.0** | **50.0 ± 0.0** |",
        "| FedProx | 2 | **50.0 ± 0.0** | 50.0 ± 0.0 | **50.0 ± 0.0** | **50.0 ± 0.0** | **50.0 ± 0.0** "
        "| **50.0 ± 0.0** | **50.0 ± 0.0** |",
        "| FedBM | 1 | 50.0 | 90.0 | – | 50.0 | 50.0 | 50.0 | 50.0 |",
        "",
        "No result: FedBM, seed 1, unfinished, 1 of 2 rounds.",
    ]


def test_the_headline_worked_by_hand(tmp_path: Path) -> None:
    """Differences by seed: 0.20, 0.16, 0.12."""
    group = only_group(scored(tmp_path, "fedavg", [0.70, 0.75, 0.80]) + scored(tmp_path, "fedbm", [0.90, 0.91, 0.92]))
    assert plain(headline(group)) == ("FedBM reaches 91.0 ± 1.0 % macro-F1 against FedAvg’s 75.0 ± 5.0 % (3 seeds).")
    assert seed_by_seed(group) == ("Seed by seed the difference is +16.0 points on average, from +12.0 to +20.0.")


def test_when_fedbm_is_worse_that_is_said(tmp_path: Path) -> None:
    group = only_group(scored(tmp_path, "fedavg", [0.80, 0.82]) + scored(tmp_path, "fedbm", [0.70, 0.70]))
    assert plain(headline(group)).startswith("FedBM stays below: 70.0 ± 0.0 % macro-F1 against FedAvg’s 81.0 ± 1.4 %")
    assert "−11.0 points" in seed_by_seed(group)


def test_a_mean_over_fewer_seeds_is_not_best(tmp_path: Path) -> None:
    """FedNH's 90 % come of its one seed, on which the others may be as good."""
    scores = {"fedavg": [0.9, 0.5], "fedbm": [0.9, 0.7], "fednh": [0.9], "central": [0.9, 0.9, 0.9]}
    group = only_group([run for method, f1 in scores.items() for run in scored(tmp_path, method, f1)])
    assert {line.row.method: line.cells[1].best for line in lines(group, "best")} == {
        "fedavg": False,
        "fedbm": True,
        "fednh": False,
        "central": False,
    }


def test_late_scores_worked_by_hand() -> None:
    """Of eight rounds the last quarter is 7 and 8; what was not evaluated does not count, an unknown score stays so."""
    rounds = [{"round": r, "test": {"f1": r / 10, "auc": 0.5}} for r in range(1, 9)]
    assert last_quarter_scores(rounds, 8) == pytest.approx({"f1": 0.75, "auc": 0.5})
    rounds[-1]["test"] = None
    assert last_quarter_scores(rounds, 8) == pytest.approx({"f1": 0.7, "auc": 0.5})
    rounds[-2]["test"] = {"f1": 0.3, "auc": None}
    assert last_quarter_scores(rounds, 8) == {"f1": 0.3, "auc": None}
    assert last_quarter_scores(rounds[:6], 8) is None


def test_a_record_keeps_the_late_scores(tmp_path: Path) -> None:
    """Of all rounds, not of those its curves keep."""
    run = read_run(fake_run(tmp_path, "fedavg", rounds=240))
    assert run.last_quarter is not None
    write_record(run, tmp_path / "record.json")
    again = read_record(tmp_path / "record.json")
    assert again.late == run.last_quarter == last_quarter_scores(run.rounds, 240)
    assert last_quarter_scores(again.rounds, 240) != run.last_quarter
    assert read_run(fake_run(tmp_path, "fedavg", 1, rounds=8, done=7)).last_quarter is None


def test_the_rival_is_the_best_other_method_not_a_variant_nor_central(tmp_path: Path) -> None:
    runs = scored(tmp_path, "fedavg", [0.5]) + scored(tmp_path, "fedprox", [0.6]) + scored(tmp_path, "central", [0.99])
    runs += scored(tmp_path, "fedbm", [0.9]) + scored(tmp_path, "fedbm", [0.95], options={"generator": False})
    assert plain(headline(only_group(runs))) == (
        "FedBM reaches 90.0 % macro-F1 against FedProx’s 60.0 %, the best of the other 2 "
        "(one seed, which shows no spread)."
    )


def test_headlines_with_little_to_say(tmp_path: Path) -> None:
    alone = scored(tmp_path / "1", "fedavg", [0.5, 0.7])
    assert plain(headline(only_group(alone))) == (
        "FedAvg reaches 60.0 ± 14.1 % macro-F1 (2 seeds); no other method stands beside it."
    )
    uneven = alone + scored(tmp_path / "1", "fedbm", [0.8])
    assert plain(headline(only_group(uneven))).endswith("(1 against 2 seeds).")
    assert seed_by_seed(only_group(uneven)) == ""
    assert headline(only_group([fake_run(tmp_path / "2", done=1)])) == "No run has finished, so there is no result yet."


def test_numbers_in_words() -> None:
    assert (percent(0.91249), percent(-0.0002)) == ("91.2", "0.0")
    assert (points(0.1), points(-0.031), points(-0.0001)) == ("+10.0", "−3.1", "+0.0")


def test_runs_are_grouped_by_data_and_partition(tmp_path: Path) -> None:
    runs = [
        fake_run(tmp_path, rounds=2),
        fake_run(tmp_path, rounds=2, beta=0.1),
        fake_run(tmp_path, rounds=2, beta=None),
        fake_run(tmp_path, rounds=2, clients=4),
        fake_run(tmp_path, rounds=2, data="pbc"),
    ]
    assert [plain(group.title) for group in compare(read_runs(runs))] == [
        "digits, Dirichlet β = 0.05, 10 clients",
        "digits, Dirichlet β = 0.05, 4 clients",
        "digits, Dirichlet β = 0.1, 10 clients",
        "digits, dealt evenly, 10 clients",
        "pbc, Dirichlet β = 0.05, 10 clients",
    ]


def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / lr, rounds=2, train={"lr": float(lr)}) for lr in ("0.01", "0.1")]
    group = only_group(runs)
    assert [row.name for row in group.rows] == ["FedBM · train.lr=0.01", "FedBM · train.lr=0.1"]
    assert any("differ in more than the method: train.lr (0.01, 0.1)" in found.sentence for found in findings(group))


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
        compare(read_runs([run, tmp_path / "b"]))


def test_fairness_holds_where_it_holds(tmp_path: Path) -> None:
    found = findings(only_group(two_methods(tmp_path, seeds=2, rounds=2)))
    assert [finding.holds for finding in found] == [True] * 6


def test_fairness_warns(tmp_path: Path) -> None:
    runs = two_methods(tmp_path, seeds=2, rounds=2)
    dealt = json.loads((runs[0] / "partition.json").read_text())["clients"]
    edit(runs[0] / "partition.json", clients=dealt[::-1])
    edit(runs[1] / "environment.json", torch="9.9")
    runs[3] = fake_run(tmp_path / "more", "fedbm", 2, rounds=2, dropped=2)
    warnings = " ".join(finding.sentence for finding in findings(only_group(runs)) if not finding.holds)
    assert "different seeds: 0, 1 (FedAvg); 0, 2 (FedBM)" in warnings
    assert "different samples in runs of the same seed (0)" in warnings
    assert "torch (2.6.0, 9.9)" in warnings
    assert "2 of FedBM" in warnings


def test_an_unfinished_run_joins_the_group_of_its_data_whatever_its_path(tmp_path: Path) -> None:
    done = fake_run(tmp_path, data="/somewhere/pbc_128.npz", rounds=3, options={"generator": False})
    edit(done / "summary.json", data="pbc")
    half = fake_run(tmp_path, data="/somewhere/pbc_128.npz", seed=1, rounds=3, done=1, options={"generator": False})
    group = only_group([done, half])
    assert group.title.startswith("pbc,")
    assert group.unfinished[0].label == group.rows[0].runs[0].label


def test_an_unfinished_run_is_told_by_how_it_was_dealt(tmp_path: Path) -> None:
    """The configuration's clients and β stand idle where a column, a file or nodes say who holds what."""
    run = fake_run(tmp_path, clients=10, beta=0.05, rounds=3, done=1)
    of_columns = {"kind": "column", "settings": {"values": ["a", "b"]}, "of": {"data": "scans"}}
    of_columns |= {"counts": [[1, 0, 0], [0, 2, 0]], "clients": [[0], [1, 2]]}
    edit(run / "partition.json", **of_columns)
    seen = read_run(run)
    assert (seen.data, seen.partition, seen.beta, seen.clients) == ("scans", "column", None, 2)
    edit(run / "partition.json", kind="quantity", settings={"beta": 0.5})
    assert (read_run(run).partition, read_run(run).beta) == ("quantity", 0.5)
    (run / "partition.json").unlink()
    assert (read_run(run).partition, read_run(run).beta, read_run(run).clients) == ("dirichlet", 0.05, 10)
    (run / "federation.json").write_text('{"format": 1, "options": {"nodes": 3}}')
    assert (read_run(run).partition, read_run(run).beta, read_run(run).clients) == ("nodes", None, 3)
    (run / "federation.json").write_text('{"format": 1}')
    with pytest.raises(FedBMError, match=r"federation\.json: options is missing"):
        read_run(run)
    (run / "partition.json").write_text(
        '{"format": 1, "kind": "iid", "settings": null, "classes": ["a"], "counts": [[1]], "clients": [[0]]}'
    )
    with pytest.raises(FedBMError, match=r"partition\.json: settings must be an object, not null"):
        read_run(run)


def test_half_a_last_line_is_a_run_being_written(tmp_path: Path) -> None:
    run = fake_run(tmp_path, rounds=5, done=3)
    with (run / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 4, "lr"')
    assert len(read_run(run).rounds) == 3


def test_no_run() -> None:
    with pytest.raises(FedBMError, match="no run was given"):
        read_runs([])


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    fake_run(tmp_path / "runs", rounds=2)
    with pytest.raises(FedBMError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(FedBMError, match=r"it holds runs, so give .*runs/\*"):
        read_run(tmp_path / "runs")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedBMError, match=r"no readable config\.toml"):
        read_run(tmp_path / "empty")


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
    assert any("own body" in finding.sentence for finding in findings(group) if not finding.holds)
