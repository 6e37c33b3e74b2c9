"""fedbm reproduce, sweep, report, features and export, as they are typed."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from calling import one_sentence
from fake_runs import fake_run

from fedbm.cli import main
from fedbm.engine.round_loop import Event
from fedbm.experiments.outcomes import read_outcome
from fedbm.runs.failure import Failure
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import Config
from fedbm.runs.run_record import read_record, write_record
from fedbm.runs.run_view import read_run
from fedbm.runs.runner import run


def grid(folder: Path, tiny_fedbm: dict[str, Any], rounds: int = 3) -> Path:
    """FedAvg and FedBM on three classes of noise, two temperatures."""
    own = {k: v for k, v in tiny_fedbm.items() if k not in ("device", "threads", "method", "rounds")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in own.items()]
    path = folder / "grid.toml"
    text = "\n".join(
        [
            'title = "A grid"',
            "[all]",
            *lines,
            f"rounds = {rounds}",
            "[axes]",
            "temperature = [7.5, 12.5]",
            "[[rows]]",
            'name = "FedAvg"',
            'method = "fedavg"',
            "[[rows]]",
            'name = "FedBM"',
            'method = "fedbm"',
        ]
    )
    path.write_text(text + "\n", encoding="utf-8")
    return path


def words(file: Path, folder: Path, *more: str) -> list[str]:
    where = ["--out", str(folder / "runs"), "--records", str(folder / "results"), "--device", "cpu", "--seeds", "1"]
    return ["sweep", str(file), *where, *more]


def test_a_sweep_is_planned_played_and_recorded(
    tiny_fedbm: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = grid(tmp_path, tiny_fedbm)
    assert main(words(file, tmp_path, "--plan")) == 0
    said = capsys.readouterr().out
    assert "runs: 3 not run\n" in said
    assert "\nremaining: 3 runs, 9 rounds\n" in said
    assert not (tmp_path / "runs").exists()
    assert main(words(file, tmp_path, "--only", "FedAvg")) == 0
    said = capsys.readouterr().out
    assert "runs: 1 finished\n" in said
    outcome = read_outcome(tmp_path / "results" / "grid.json")
    assert [(r.row, r.at["temperature"], r.state) for r in outcome.results] == [
        ("FedAvg", 7.5, "finished"),
        ("FedBM", 7.5, "not run"),
        ("FedAvg", 12.5, "finished"),
        ("FedBM", 12.5, "not run"),
    ]
    assert main(words(file, tmp_path, "--plan")) == 0
    assert "runs: 1 finished, 2 not run\n" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "results"), "--to", str(page)]) == 0
    assert "2 runs not run" in page.read_text(encoding="utf-8")
    shutil.copytree(tmp_path / "runs", tmp_path / "another machine" / "runs")
    capsys.readouterr()
    assert main(words(file, tmp_path / "another machine", "--plan")) == 0
    assert "runs: 1 finished, 2 not run\n" in capsys.readouterr().out


def test_a_spent_budget_ends_cleanly_and_is_gone_on_from(
    tiny_fedbm: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = grid(tmp_path, tiny_fedbm, rounds=400)
    assert main(words(file, tmp_path, "--only", "FedAvg", "--budget", "2s")) == 0
    said = capsys.readouterr().out
    assert "The budget " in said
    assert "runs: 1 unfinished" in said or "runs: 1 not run" in said
    assert not list((tmp_path / "runs").rglob(".*.part"))
    outcome = read_outcome(tmp_path / "results" / "grid.json")
    assert {r.state for r in outcome.results} <= {"unfinished", "not run"}


def test_a_run_that_fails_says_so_until_it_goes_on(
    tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "grid.toml"
    settings = {k: v for k, v in tiny.items() if k not in ("device", "threads")}
    file.write_text("[all]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.items()), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("fedbm.runs.batch.run_all", lambda configs, **_: ((0, Failure("the disk is full")) for _ in [0]))
        assert main(words(file, tmp_path)) == 2
    seen = capsys.readouterr()
    assert one_sentence(seen.err).endswith("the disk is full")
    assert "runs: 1 failed" in seen.out
    assert "failed: FedAvg, seed 0: the disk is full" in seen.out
    (result,) = read_outcome(tmp_path / "results" / "grid.json").results
    assert (result.state, result.why) == ("failed", "the disk is full")
    assert main(words(file, tmp_path)) == 0
    assert not list((tmp_path / "runs").rglob("failed.json"))
    said = capsys.readouterr().out
    assert "Method  n  Accuracy  Macro-F1  F1, last round  F1, last quarter\n" in said, (
        "one row has nothing to be compared with"
    )


def test_what_was_played_when_a_budget_ends_is_not_played_again(
    tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are far between: what is gone on from was written because the budget came to its end."""
    file = tmp_path / "grid.toml"
    settings = {k: v for k, v in tiny.items() if k not in ("device", "threads")} | {"rounds": 15}
    file.write_text("[all]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.items()), encoding="utf-8")
    told = words(file, tmp_path, "--budget", "1h", "--checkpoint-every", "1000")

    def two_rounds(configs: Sequence[Config], **_: Any) -> Iterator[tuple[int, Event]]:
        for event in run(make_plan(configs[0])):
            yield 0, event
            if event.record is not None and event.round == 2:
                return

    with monkeypatch.context() as patch:
        patch.setattr("fedbm.runs.batch.run_all", two_rounds)
        assert main(told) == 0
    said = capsys.readouterr().out
    assert "The budget is spent. Run the same command again to continue from the last checkpoints" in said
    (rounds,) = (tmp_path / "runs").rglob("rounds.jsonl")
    played = len(rounds.read_text(encoding="utf-8").splitlines())
    assert 0 < played < 15
    assert main(told) == 0
    assert f"continuing after round {played}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["reproduce", "modulse"], 'there is no experiment "modulse" (did you mean "modules"?)'),
        (["reproduce", "modules", "--only", "w/o LKC"], 'no run has row = "w/o LKC" (did you mean "w/o LKCC"?)'),
        (["reproduce", "modules", "--budget", "soon"], 'a budget must be a time such as 25m, 90s or 1h30m, not "soon"'),
        (
            ["reproduce", "modules", "--seeds", "0"],
            "--seeds must be a count from 1 to 99, a range such as 3-12 or a list",
        ),
        (["reproduce", "modules", "--only", "beta=7"], 'only: no run has beta = "7"; choose 0.05 or 0.1'),
        (["reproduce", "modules", "--buget", "1m"], 'has no argument --buget (did you mean "--budget"?)'),
        (["reproduce", "modules", "--data-dir", "nowhere"], "nowhere is not a folder"),
        (["sweep", "nowhere.toml"], "there is no file nowhere.toml"),
        (["sweep", "modules"], "modules has the name of a shipped experiment"),
        (["export", "--tensorboard", "events"], "there are no runs in runs to export"),
        (["export", "--out", "nowhere"], "--tensorboard"),
    ],
)
def test_mistakes(
    typed: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed) == 2
    assert sentence in one_sentence(capsys.readouterr().err)


def test_where_nothing_can_be_played_the_command_says_so_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that continues would take an empty table for a result; that the data are absent is on record."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text('[all]\ndata = "digitz"\nrounds = 1\n', encoding="utf-8")
    assert main(["sweep", "grid.toml", "--plan"]) == 0
    assert main(["sweep", "grid.toml"]) == 2
    said, error = capsys.readouterr()
    assert 'no data set is called "digitz" (did you mean "digits"?)' in said
    assert "no run can be computed here" in one_sentence(error)
    assert {r.state for r in read_outcome(tmp_path / "results" / "grid.json").results} == {"absent"}


def test_a_folder_of_runs_means_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        fake_run(tmp_path / "elsewhere", seed=seed, rounds=2)
    assert main(["report", "elsewhere", "--to", "all.csv"]) == 0
    assert len((tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2 * 2  # runs, moments
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    assert main(["report", "empty"]) == 2
    assert "and no such folder of a run" in one_sentence(capsys.readouterr().err)


def test_a_plan_counts_a_run_of_two_cells_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Central's runs stand in both columns, whether their images are here or not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBM_HOME", str(tmp_path))
    assert main(["reproduce", "comparison-oct-c8", "--plan"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("runs: 63 absent\n")
    assert "absent: FedAvg, beta 0.05, seed 0 and 62 more: the images of oct-c8 are not here" in said


def test_a_report_of_records_without_a_finished_run_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBM_HOME", str(tmp_path))
    assert main(["reproduce", "language-models"]) == 2
    assert main(["report", "results", "--to", "page.md"]) == 0
    said = Path("page.md").read_text(encoding="utf-8")
    assert "0 of 48 runs finished" in said
    assert "absent: the images of kvasir are not here" in said


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    assert "comparison-ham10000  Table III of the paper" in capsys.readouterr().out


@pytest.fixture(scope="module")
def two_runs(tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    import fedbm

    out = tmp_path_factory.mktemp("runs")
    for settings in (tiny, tiny_fedbm):
        fedbm.simulate(out=str(out), **settings)
    return out


def test_features_are_computed_when_asked_for(two_runs: Path, tmp_path: Path) -> None:
    assert main(["features", "fedavg", "fedbm", "--out", str(two_runs), "--device", "cpu"]) == 0
    for path in sorted(two_runs.glob("*/features.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert len(found["points"]) == len(found["labels"]) == 18
        assert (found["anchors"] is None) == path.parent.name.startswith("fedavg")
        before = path.read_bytes()
        assert main(["features", path.parent.name, "--out", str(two_runs), "--device", "cpu"]) == 0
        assert path.read_bytes() == before  # the same run, the same picture
    page = tmp_path / "page.html"
    assert main(["report", "--out", str(two_runs), "--to", str(page)]) == 0
    assert page.read_text(encoding="utf-8").count("t-SNE of test features of") == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("x.pdf", "x.pdf is unknown. Use a file name that ends in .html, .md, .tex or .csv"),
        ("x", "x is unknown. Use a file name that ends in .html, .md, .tex or .csv"),
    ],
)
def test_a_page_is_not_written_under_another_kinds_name(
    two_runs: Path, tmp_path: Path, name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--out", str(two_runs), "--to", str(tmp_path / name)]) == 2
    assert sentence in one_sentence(capsys.readouterr().err)
    assert not (tmp_path / name).exists()


def test_runs_as_latex_and_for_programs(tmp_path: Path) -> None:
    """A run without a result has its state and no number."""
    done = [fake_run(tmp_path / "runs", "fedavg", seed, best={"f1": 0.5 + 0.1 * seed}) for seed in (0, 1)]
    half = fake_run(tmp_path / "runs", "fedbm", done=2)
    for suffix in ("csv", "tex"):
        assert main(["report", "--out", str(tmp_path / "runs"), "--to", str(tmp_path / f"x.{suffix}")]) == 0
    lines = list(csv.DictReader((tmp_path / "x.csv").read_text(encoding="utf-8").splitlines()))
    assert [(line["run"], line["moment"]) for line in lines] == [
        *((run.name, moment) for run in done for moment in ("best", "last")),
        (half.name, ""),
    ]
    assert [float(line["f1"]) for line in lines[::2] if line["f1"]] == [0.5, 0.6]
    assert (lines[-1]["state"], lines[-1]["accuracy"]) == ("unfinished, 2 of 6 rounds", "")
    text = (tmp_path / "x.tex").read_text(encoding="utf-8")
    assert "\n{FedAvg} & 2 & " in text
    assert " & 55.0 ± 7.1 & " in text
    assert "No result, not counted: FedBM, seed 0, unfinished, 2 of 6 rounds." in text


def test_a_table_of_runs_as_a_file(two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, kept = tmp_path / "my x-figures" / "98.svg", tmp_path / "my x-figures" / "2-mine.svg"
    old.parent.mkdir()
    old.touch()  # of an earlier, longer report
    kept.touch()
    assert main(["report", "--out", str(two_runs), "--to", str(tmp_path / "my x.md")]) == 0
    assert not old.exists()
    kept.unlink()
    written = (tmp_path / "my x.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\n!\[[^\]]*\]\((my%20x-figures/\d\.svg)\)\n", written)  # a link has no spaces
    found = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.glob("my x-figures/*"))]
    assert [unquote(picture) for picture in pictures] == found != []


def test_features_reach_the_record_of_the_run(
    two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = two_runs.glob("fedbm-*")
    (folder / "features.json").unlink(missing_ok=True)
    command = ["features", folder.name, "--out", str(two_runs), "--device", "cpu", "--records", str(tmp_path)]
    assert main(command) == 0
    assert "record:" not in capsys.readouterr().out
    record = tmp_path / "runs" / f"{folder.name}.json"
    (folder / "features.json").unlink()
    write_record(read_run(folder), record)
    assert read_record(record).features is None
    assert main(command) == 0
    assert f"record: {record}" in capsys.readouterr().out
    assert read_record(record).features == read_run(folder).features is not None


@pytest.mark.parametrize("kept", [None, 2])
def test_a_finished_run_that_cannot_be_recorded_is_said_before_others_are_played(
    tiny_fedbm: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int | None
) -> None:
    file = grid(tmp_path, tiny_fedbm)
    assert main(words(file, tmp_path, "--only", "FedAvg")) == 0
    rounds = next((tmp_path / "runs").glob("fedavg-*")) / "rounds.jsonl"
    lines = rounds.read_text(encoding="utf-8").splitlines(keepends=True)
    rounds.unlink() if kept is None else rounds.write_text("".join(lines[:kept]), encoding="utf-8")
    capsys.readouterr()
    assert main(words(file, tmp_path)) == 2
    assert "Restore the file, or remove" in one_sentence(capsys.readouterr().err)
    assert list((tmp_path / "runs").glob("fedbm-*")) == []


def test_a_finished_run_whose_configuration_was_edited_is_not_recorded(
    tiny_fedbm: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record would show settings that were not computed; the command stops before it runs others."""
    file = grid(tmp_path, tiny_fedbm)
    assert main(words(file, tmp_path, "--only", "FedAvg")) == 0
    folder = next((tmp_path / "runs").glob("fedavg-*"))
    record = tmp_path / "results" / "runs" / f"{folder.name}.json"
    before = record.read_bytes()
    config = folder / "config.toml"
    text, count = re.subn(r"^lr = .*$", "lr = 0.5", config.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1
    config.write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert main(words(file, tmp_path)) == 2
    assert f"{config} was edited" in one_sentence(capsys.readouterr().err)
    assert list((tmp_path / "runs").glob("fedbm-*")) == []
    assert record.read_bytes() == before


def test_tensorboard_reads_what_was_exported(two_runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["export", "--out", str(two_runs), "--tensorboard", str(tmp_path / "events")]) == 0
    (folder,) = (tmp_path / "events").glob("fedavg-*")
    seen = EventAccumulator(str(folder)).Reload()
    records = [json.loads(line) for line in (two_runs / folder.name / "rounds.jsonl").read_text().splitlines()]
    assert [(e.step, e.value) for e in seen.Scalars("test/accuracy")] == [
        (r["round"], pytest.approx(r["test"]["accuracy"])) for r in records
    ]
    assert main(["export", "--out", str(two_runs), "--tensorboard", str(tmp_path / "events")]) == 2
