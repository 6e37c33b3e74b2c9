"""Reading a run folder: what it contains, finished or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_runs import edit, fake_run

from fedbm.errors import FedBMError
from fedbm.runs.run_record import read_record, write_record
from fedbm.runs.run_view import METRICS, last_quarter_scores, mean_scores, read_run, read_runs


def test_last_quarter_scores_worked_by_hand() -> None:
    """Of eight rounds the last quarter is 7 and 8; what was not evaluated does not count, an unknown score stays so."""
    tests = {r: {"f1": r / 10, "auc": 0.5} for r in range(1, 9)}
    assert last_quarter_scores(tests, 8) == pytest.approx({"f1": 0.75, "auc": 0.5})
    assert last_quarter_scores(tests | {8: None}, 8) == pytest.approx({"f1": 0.7, "auc": 0.5})
    assert last_quarter_scores(tests | {8: None, 7: {"f1": 0.3, "auc": None}}, 8) == {"f1": 0.3, "auc": None}
    assert last_quarter_scores({r: tests[r] for r in range(1, 7)}, 8) is None


def test_a_record_keeps_the_last_quarter_scores(tmp_path: Path) -> None:
    """Of all rounds, not of those its curves keep."""
    run = read_run(fake_run(tmp_path, "fedavg", rounds=240))
    assert run.last_quarter is not None
    write_record(run, tmp_path / f"{run.id}.json")
    again = read_record(tmp_path / f"{run.id}.json")
    assert again.last_quarter == run.last_quarter
    assert last_quarter_scores({record.round: record.test for record in run.rounds}, 240) == run.last_quarter
    assert last_quarter_scores({record.round: record.test for record in again.rounds}, 240) != run.last_quarter
    assert read_run(fake_run(tmp_path, "fedavg", 1, rounds=8, done=7)).last_quarter is None


def test_a_mean_over_some_seeds_is_not_shown(tmp_path: Path) -> None:
    runs = [read_run(fake_run(tmp_path, seed=seed, best={"auc": auc})) for seed, auc in enumerate((None, 0.9))]
    cells = dict(zip(METRICS, mean_scores(runs), strict=True))
    assert [metric for metric, cell in cells.items() if cell == "–"] == ["auc"]


def test_an_unfinished_run_is_described_by_its_partition(tmp_path: Path) -> None:
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
    with pytest.raises(FedBMError, match=r"partition\.json: settings must be an object with keys, not null"):
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
    for folder in (tmp_path / "nowhere", tmp_path / "runs"):
        with pytest.raises(FedBMError, match=f"{folder} is not the folder of a run, which has a config.toml"):
            read_run(folder)
