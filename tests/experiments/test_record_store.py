"""No finished run leaves a record unsaid: others are refused their place, and what is on record is not played again."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calling import one_sentence
from fake_outcomes import fake_outcome
from PIL import Image

from fedbm.cli import main
from fedbm.errors import FedBMError
from fedbm.experiments import record_store
from fedbm.experiments.outcomes import Outcome, read_outcome
from fedbm.experiments.record_store import kept_results, write_outcome
from fedbm.experiments.spec import parse
from fedbm.runs.failure import Failure, keep_failure
from fedbm.runs.scheduler import run_all

GRID = """
[all]
data = "scans"
[axes]
beta = [0.1, 0.05]
[[rows]]
name = "FedAvg"
method = "fedavg"
[[rows]]
name = "FedBM"
method = "fedbm"
"""


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    """Two rows, two cells, two seeds: seven finished, FedBM's second seed at β = 0.05 failed. Every run has its id."""
    made = fake_outcome(tmp_path / "runs", parse(GRID, "mine", "mine"), seeds=2, rounds=2)
    results = []
    for number, result in enumerate(made.results):
        assert result.run is not None
        results.append(replace(result, id=f"run{number}", run=replace(result.run, id=f"run{number}")))
    results[-1] = replace(results[-1], run=None, state="failed", why="the disk is full")
    return replace(made, results=tuple(results))


def elsewhere(outcome: Outcome, suffix: str = "") -> Outcome:
    """The same trials on a machine that has none of the runs, whose ids end in *suffix*."""
    bare = (replace(r, state="not run", why="", run=None, id=r.id + suffix) for r in outcome.results)
    return replace(outcome, results=tuple(bare))


def refused(outcome: Outcome, folder: Path, count: int) -> None:
    """*outcome* is not written to *folder*, in one sentence; nothing there changes."""
    before = contents(folder)
    with pytest.raises(FedBMError) as caught:
        write_outcome(outcome, folder)
    runs = f"{count} finished run{'s' * (count > 1)}"
    assert str(caught.value).startswith(
        f"{folder / 'mine.json'} contains {runs} with other data, settings or rows, which"
    )
    assert "Choose another folder for records, or r" in str(caught.value)
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_finished_runs_of_other_settings_keep_their_place(outcome: Outcome, tmp_path: Path) -> None:
    """A file edited from 4 to 9 rounds: at whichever seed, the runs of before are not results of it."""
    folder = tmp_path / "results"
    write_outcome(outcome, folder)
    write_outcome(elsewhere(outcome), folder)
    assert sum(r.run is not None for r in read_outcome(folder / "mine.json").results) == 7
    edited = elsewhere(outcome, "-edited")
    refused(edited, folder, 7)
    refused(replace(edited, results=tuple(r for r in edited.results if r.seed == 0)), folder, 7)
    one_cell = (b if a.at["beta"] == 0.1 else a for a, b in zip(outcome.results, edited.results, strict=True))
    refused(replace(outcome, results=tuple(one_cell)), folder, 4)


def test_a_failure_of_other_settings_goes(outcome: Outcome, tmp_path: Path) -> None:
    failed = replace(elsewhere(outcome), results=(*elsewhere(outcome).results[:-1], outcome.results[-1]))
    path = write_outcome(failed, tmp_path)
    write_outcome(elsewhere(outcome), tmp_path)
    assert "failed" in {r.state for r in read_outcome(path).results}
    write_outcome(elsewhere(outcome, "-edited"), tmp_path)
    assert {r.state for r in read_outcome(path).results} == {"not run"}


def test_rows_and_cells_that_left_the_file_leave_the_record_unless_a_run_is_finished(
    outcome: Outcome, tmp_path: Path
) -> None:
    fewer = replace(
        outcome,
        rows=("FedAvg",),
        axes={"beta": [0.1]},
        results=tuple(r for r in outcome.results if r.row == "FedAvg" and r.at == {"beta": 0.1}),
    )
    write_outcome(outcome, tmp_path / "results")
    refused(fewer, tmp_path / "results", 5)
    write_outcome(elsewhere(outcome), tmp_path / "planned")
    path = write_outcome(fewer, tmp_path / "planned")
    assert [(r.row, r.at["beta"], r.seed) for r in read_outcome(path).results] == [
        ("FedAvg", 0.1, 0),
        ("FedAvg", 0.1, 1),
    ]


def test_a_run_stays_under_another_name(outcome: Outcome, tmp_path: Path) -> None:
    """Rows renamed, an axis more: the runs are the same, as their ids say."""
    write_outcome(outcome, tmp_path)
    renamed = tuple(replace(r, row=r.row.upper(), at={**r.at, "clients": 10}) for r in outcome.results)
    axes = {**outcome.axes, "clients": [10]}
    path = write_outcome(replace(outcome, rows=("FEDAVG", "FEDBM"), axes=axes, results=renamed), tmp_path)
    again = read_outcome(path)
    assert {r.row for r in again.results} == {"FEDAVG", "FEDBM"}
    assert sum(r.run is not None for r in again.results) == 7


def test_without_data_a_record_stays_if_it_is_of_the_same_settings(outcome: Outcome, tmp_path: Path) -> None:
    """No id is known where the data are not here."""
    write_outcome(outcome, tmp_path)
    absent = replace(outcome, results=tuple(replace(r, run=None, id="", state="absent") for r in outcome.results))
    path = write_outcome(absent, tmp_path)
    assert sum(r.run is not None for r in read_outcome(path).results) == 7
    refused(replace(absent, shared={**outcome.shared, "rounds": 9}), tmp_path, 7)


def test_a_record_is_not_made_of_itself(tmp_path: Path) -> None:
    """Its pictures would be compressed once more, and what records leave out would be lost."""
    made = fake_outcome(tmp_path / "runs", parse(GRID, "mine", "mine"), seeds=1, rounds=2)
    path = write_outcome(made, tmp_path / "results")
    before = contents(tmp_path / "results")
    assert any(name.suffix == ".jpg" for name in before)
    write_outcome(read_outcome(path), tmp_path / "results")
    assert contents(tmp_path / "results") == before


def test_processes_that_write_at_the_same_time_lose_nothing(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has computed one seed. While the first writes, the second starts and has to wait."""
    first, second = (replace(outcome, results=tuple(r for r in outcome.results if r.seed == seed)) for seed in (0, 1))
    other = threading.Thread(target=write_outcome, args=(second, tmp_path / "results"))
    write = record_store.atomic_write

    def write_slowly(path: Path) -> Any:
        if not other.ident:
            other.start()
            other.join(0.5)
        return write(path)

    monkeypatch.setattr(record_store, "atomic_write", write_slowly)
    path = write_outcome(first, tmp_path / "results")
    other.join()
    assert {r.key for r in read_outcome(path).results} == {r.key for r in outcome.results}


def test_where_nothing_is_on_record_nothing_is_dropped(outcome: Outcome, tmp_path: Path) -> None:
    assert kept_results(outcome, tmp_path / "nowhere") == []


@pytest.fixture(scope="module")
def finished(tiny: dict[str, Any], scans: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    shutil.copytree(scans, folder / "scans")
    own = {key: value for key, value in tiny.items() if key not in ("device", "threads", "method")}
    write_grid(folder / "grid.toml", {**own, "data": "./scans", "rounds": 2})
    with contextlib.chdir(folder):
        assert main(command()) == 0
    return folder


@pytest.fixture
def swept(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a grid of FedAvg and FedProx on scans was run: grid.toml, runs, results."""
    shutil.copytree(finished, tmp_path / "swept")
    monkeypatch.chdir(tmp_path / "swept")
    return tmp_path / "swept"


def write_grid(path: Path, settings: dict[str, Any]) -> None:
    lines = ["[all]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    for method in ("fedavg", "fedprox"):
        lines += ["[[rows]]", f'name = "{method}"', f'method = "{method}"']
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def command(*more: str, file: str = "grid.toml") -> list[str]:
    return ["sweep", file, "--cache", "cache", "--device", "cpu", "--seeds", "1", *more]


def none_is_played(configs: Sequence[Any], **_: Any) -> Iterator[Any]:
    raise AssertionError(f"{len(configs)} runs would be played")


def test_other_data_are_refused_before_anything_is_played(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One picture differs: the runs would be others. The plan says so; in a folder of their own they are recorded."""
    Image.new("L", (16, 16), 77).save(next((swept / "scans").rglob("*.png")))
    before = contents(swept / "results")
    with monkeypatch.context() as patch:
        patch.setattr("fedbm.runs.batch.run_all", none_is_played)
        capsys.readouterr()
        assert main(command("--plan")) == 0
        said = "results/grid.json contains 2 finished runs with other data, settings or rows, which would be dropped."
        plan = capsys.readouterr().out
        assert plan.startswith("runs: 2 not run\n")
        assert f"note: no run would start: {said} Choose another folder" in plan
        assert main(command("--budget", "1s")) == 2
        assert one_sentence(capsys.readouterr().err).startswith(f"{said} Choose another folder for records")
    assert contents(swept / "results") == before
    assert main(command("--records", "others")) == 0
    assert contents(swept / "results") == before
    assert {r.state for r in read_outcome(swept / "others" / "grid.json").results} == {"finished"}


def test_settings_changed_on_purpose_and_another_grid_of_the_same_name_are_refused(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row more loses nothing."""
    text = (swept / "grid.toml").read_text(encoding="utf-8")
    (swept / "b").mkdir()
    (swept / "b" / "grid.toml").write_text(text.replace('"fedprox"', '"scaffold"'), encoding="utf-8")
    before = contents(swept / "results")
    capsys.readouterr()
    assert main(command(file="b/grid.toml")) == 2
    assert "results/grid.json contains 1 finished run with other data" in one_sentence(capsys.readouterr().err)
    (swept / "grid.toml").write_text(text.replace("rounds = 2", "rounds = 3"), encoding="utf-8")
    assert main(command()) == 2
    assert "results/grid.json contains 2 finished runs with other data" in one_sentence(capsys.readouterr().err)
    assert contents(swept / "results") == before
    (swept / "grid.toml").write_text(text + '[[rows]]\nname = "scaffold"\nmethod = "scaffold"\n', encoding="utf-8")
    assert main(command()) == 0
    assert [r.state for r in read_outcome(swept / "results" / "grid.json").results] == ["finished"] * 3


def test_a_run_on_record_is_not_played_again(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a fresh clone: records are there, runs are not. Without its record one is run, elsewhere all are."""
    shutil.rmtree(swept / "runs")
    before = contents(swept / "results")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("fedbm.runs.batch.run_all", none_is_played)
        assert main(command("--plan")) == 0
        said = capsys.readouterr().out
        assert said == "runs: 2 on record\nremaining: 0 runs, 0 rounds\n"
        assert main(command()) == 0
        assert "\nfedprox  1 " in capsys.readouterr().out, "its scores are in the table"
        assert contents(swept / "results") == before
        with pytest.raises(AssertionError, match="2 runs would be played"):
            main(command("--records", "others"))
    (swept / "results" / "grid.json").unlink()
    next((swept / "results" / "runs").glob("fedprox-*")).unlink()
    capsys.readouterr()
    assert main(command()) == 0
    assert capsys.readouterr().out.startswith("runs: 1 not run, 1 on record\n")
    assert [path.name.partition("-")[0] for path in (swept / "runs").glob("*-*")] == ["fedprox"]
    assert [r.state for r in read_outcome(swept / "results" / "grid.json").results] == ["finished"] * 2


def test_a_damaged_record_is_named_before_anything_is_played(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(next((swept / "runs").glob("fedavg-*")))
    record = next((swept / "results" / "runs").glob("fedavg-*.json"))
    record.write_text("{", encoding="utf-8")
    monkeypatch.setattr("fedbm.runs.batch.run_all", none_is_played)
    capsys.readouterr()
    assert main(command()) == 2
    said = one_sentence(capsys.readouterr().err)
    assert said.startswith(f"cannot read results/runs/{record.name}")
    assert said.endswith("; remove the record to compute the run again")
    other = next((swept / "results" / "runs").glob("fedprox-*.json"))
    shutil.copy(other, record)
    assert main(command()) == 2
    said = one_sentence(capsys.readouterr().err)
    assert said.startswith(f'results/runs/{record.name} is the record of another run, "{other.stem}"; remove')


def test_a_record_that_was_removed_leaves_its_place(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So one gets rid of a run: it is not run then, and the others stay."""
    shutil.rmtree(next((swept / "runs").glob("fedprox-*")))
    next((swept / "results" / "runs").glob("fedprox-*.json")).unlink()
    assert main(command("--only", "fedavg")) == 0
    states = {r.row: r.state for r in read_outcome(swept / "results" / "grid.json").results}
    assert states == {"fedavg": "finished", "fedprox": "not run"}


def test_a_run_that_failed_here_is_done_where_it_is_on_record(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = next((swept / "runs").glob("fedavg-*"))
    (run / "summary.json").unlink()
    keep_failure(run, Failure("the disk is full"))
    monkeypatch.setattr("fedbm.runs.batch.run_all", none_is_played)
    capsys.readouterr()
    assert main(command()) == 0
    assert capsys.readouterr().out.startswith("runs: 1 finished, 1 on record\n")


def test_records_that_cannot_be_written_are_named_before_anything_is_played(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (swept / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr("fedbm.runs.batch.run_all", none_is_played)
    capsys.readouterr()
    assert main(command("--seeds", "2", "--records", "file/x")) == 2
    assert one_sentence(capsys.readouterr().err).startswith("cannot write file/x: Not a directory")


def test_ctrl_c_keeps_records_of_what_is_finished(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(configs: Sequence[Any], **_: Any) -> Iterator[Any]:
        yield from run_all(configs[:1])
        raise KeyboardInterrupt

    shutil.rmtree(swept / "runs")
    shutil.rmtree(swept / "results")
    monkeypatch.setattr("fedbm.runs.batch.run_all", interrupted)
    capsys.readouterr()
    assert main(command()) == 130
    said = capsys.readouterr()
    assert one_sentence(said.err) == "interrupted; run the same command again to continue"
    assert said.out.endswith("records: results/grid.json\n")
    assert "Accuracy" not in said.out, "one who stops wants no tables"
    assert [r.state for r in read_outcome(swept / "results" / "grid.json").results] == ["finished", "not run"]
    assert main(["report", "results", "--to", "page.html"]) == 0


def test_ctrl_c_stays_one_where_records_cannot_be_written(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Iterator[Any]:
        shutil.rmtree(swept / "results")
        (swept / "results").write_text("", encoding="utf-8")
        raise KeyboardInterrupt
        yield

    shutil.rmtree(swept / "runs")
    shutil.rmtree(swept / "results")
    monkeypatch.setattr("fedbm.runs.batch.run_all", interrupted)
    capsys.readouterr()
    assert main(command()) == 130
    assert one_sentence(capsys.readouterr().err) == "interrupted; run the same command again to continue"
