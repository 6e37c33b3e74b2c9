"""Records of runs and experiments: small, whole, and enough for every table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run
from pages import DOCS, section_of
from PIL import Image

from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import Outcome, read_outcome, read_outcomes
from fedbm.experiments.record_store import write_outcome
from fedbm.report.comparison_checks import check_comparison
from fedbm.report.experiments_report import experiments_report
from fedbm.report.figures.generated_images import galleries
from fedbm.report.grouping import group_runs
from fedbm.report.render.csv import render_csv
from fedbm.report.render.html import render_html
from fedbm.report.render.markdown import render_markdown
from fedbm.report.runs_report import runs_report
from fedbm.runs.run_record import MAX_POINTS, _kept_rounds, read_record, record_of, write_record
from fedbm.runs.run_view import RunView, read_run

FAILED = ("failed", "round 3: the update of client 1 is unusable: body.bn is not finite")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Kvasir: FedBM has two seeds of three, w/o CGDE none; OCT-C8 is not here."""
    return fake_outcome(
        tmp_path_factory.mktemp("runs"),
        "modules",
        missing={("FedBM", 2): FAILED, **{("w/o CGDE", seed): ("not run", "") for seed in range(3)}},
        absent={"oct-c8": "the images of oct-c8 are not here"},
    )


@pytest.mark.parametrize("rounds", [7, 100, 333])
def test_a_record_gives_back_what_a_report_needs(tmp_path: Path, rounds: int) -> None:
    run = read_run(fake_run(tmp_path / "runs", "fedbm", seed=0, rounds=rounds, classes=[str(k) for k in range(8)]))
    path = tmp_path / "records" / f"{run.id}.json"
    write_record(run, path)
    found = read_record(path)
    assert found.generated == path.with_suffix(".jpg")
    for name in ("id", "method", "label", "data", "beta", "clients", "seed", "planned", "summary", "environment"):
        assert getattr(found, name) == getattr(run, name), name
    assert {"data", "method", "train"} <= set(found.config)
    assert "engine" not in found.config  # paths of a machine
    assert len(found.rounds) <= MAX_POINTS + 1
    best = run.summary["best"]["round"] if run.summary else 0
    kept = {record["round"]: record for record in found.rounds}
    assert {best, rounds} <= set(kept)
    for record in run.rounds:
        if record["round"] in kept:
            assert kept[record["round"]]["test"]["f1"] == pytest.approx(record["test"]["f1"], abs=1e-5)
    assert total(found, "bytes", "sent") == total(run, "bytes", "sent")
    assert total(found, "seconds", "train") == pytest.approx(total(run, "seconds", "train"), abs=1e-3)
    assert path.stat().st_size < 25_000


def test_generated_images_of_earlier_rounds_are_in_the_record(tmp_path: Path) -> None:
    """Noise, which compresses worst: a column of two tiles per round, in the order of rounds, with its label."""
    folder = fake_run(tmp_path / "runs", "fedbm", seed=0, classes=[str(k) for k in range(8)])
    (folder / "generated").mkdir()
    for number in (5, 10, 20, 50, 100, 200):
        noise = np.random.default_rng(number).integers(0, 256, (8 * 64, 8 * 64, 3), np.uint8)
        if number == 10:
            noise[:, : 2 * 64] = 255
        Image.fromarray(noise).save(folder / "generated" / f"{number}.png")
    run = read_run(folder)
    path = tmp_path / "records" / f"{run.id}.json"
    write_record(run, path)
    found = read_record(path)
    assert found.strip == path.with_suffix(".rounds.jpg")
    assert found.strip_rounds == (5, 10, 20, 50, 100, 200)
    assert found.strip.stat().st_size < 60_000
    with Image.open(found.strip) as strip:
        columns_ = np.asarray(strip.convert("L"), float).reshape(strip.height, 6, -1).mean(axis=(0, 2))
    assert columns_.argmax() == 1
    (group,) = group_runs([found])
    _, gallery = galleries(group)
    assert gallery.rounds == (5, 10, 20, 50, 100, 200)
    assert [name for name, _ in gallery.images] == list("01234567")
    text = render_html(runs_report([found]))
    assert "".join(f"<span>{number}</span>" for number in (5, 10, 20, 50, 100, 200)) in text


def csv_of(outcomes: list[Outcome]) -> str:
    return render_csv(experiments_report(outcomes))


def total(run: RunView, part: str, key: str) -> float:
    return sum(record[part][key] for record in run.rounds)


def test_no_record_is_made_of_a_run_with_damaged_pictures(tmp_path: Path) -> None:
    run = fake_run(tmp_path, "fedbm")
    for damaged in (b"junk", (run / "generated.png").read_bytes()[:100]):
        (run / "generated.png").write_bytes(damaged)
        with pytest.raises(FedBMError, match=r"cannot read .*generated\.png: .* Delete it to make the report without"):
            write_record(read_run(run), tmp_path / "record.json")


def test_partitions_are_compared_by_digest(tmp_path: Path) -> None:
    runs = [read_run(fake_run(tmp_path / "runs", method, seed=0)) for method in ("fedavg", "fedbm")]
    for run in runs:
        write_record(run, tmp_path / f"{run.id}.json")
    (group,) = group_runs([read_record(tmp_path / f"{run.id}.json") for run in runs])
    sentences = [finding.sentence for finding in check_comparison(group)]
    assert "Seeds at which clients have different samples: none." in sentences


def test_an_outcome_is_read_as_it_was_written(modules: Outcome, tmp_path: Path) -> None:
    write_outcome(modules, tmp_path)
    (again,) = read_outcomes(tmp_path)
    assert csv_of([again]) == csv_of([modules])
    assert render_markdown(experiments_report([again])) == render_markdown(experiments_report([modules]))
    assert [(r.key, r.state, r.why) for r in again.results] == [(r.key, r.state, r.why) for r in modules.results]
    assert not hasattr(again, "seeds")  # a record has the seeds of its trials only


def test_what_another_machine_finished_stays(modules: Outcome, tmp_path: Path) -> None:
    write_outcome(modules, tmp_path)
    bare = replace(modules, results=tuple(replace(r, state="absent", why="no data", run=None) for r in modules.results))
    write_outcome(bare, tmp_path)
    again = read_outcome(tmp_path / "modules.json")
    assert [r.state for r in again.results if r.run] == ["finished"] * 10
    assert {(r.row, r.state) for r in again.results if not r.run and r.at["data"] == "kvasir"} == {
        ("FedBM", "failed"),  # there it was tried, here it was not
        ("w/o CGDE", "absent"),
    }


def told_of_one(outcome: Outcome, **more: Any) -> Outcome:
    """Only the first result of *outcome*, without a run, and so changed."""
    return replace(outcome, results=(replace(outcome.results[0], **{"run": None, "why": "", "id": "it", **more}),))


@pytest.mark.parametrize("state", ["unfinished", "failed"])
def test_the_state_of_a_run_that_is_here_replaces_the_recorded_one(
    modules: Outcome, state: str, tmp_path: Path
) -> None:
    write_outcome(told_of_one(modules, state="unfinished"), tmp_path)
    path = write_outcome(told_of_one(modules, state=state, why="now"), tmp_path)
    assert [(r.state, r.why) for r in read_outcome(path).results] == [(state, "now")]


@pytest.mark.parametrize("before", ["not run", "unfinished", "failed"])
@pytest.mark.parametrize(("now", "known"), [("not run", "it"), ("absent", "")])
def test_of_a_run_that_is_not_here_the_last_word_is_kept(
    modules: Outcome, before: str, now: str, known: str, tmp_path: Path
) -> None:
    write_outcome(told_of_one(modules, state=before), tmp_path)
    (result,) = read_outcome(write_outcome(told_of_one(modules, state=now, id=known), tmp_path)).results
    assert result.id == "it"
    assert result.state == (now if before == "not run" else before)


def test_what_is_finished_elsewhere_outlasts_a_folder_that_is_not(modules: Outcome, tmp_path: Path) -> None:
    finished = next(r for r in modules.results if r.run is not None)
    assert finished.run is not None
    write_outcome(replace(modules, results=(replace(finished, id=finished.run.id),)), tmp_path)
    here = replace(finished, run=None, state="unfinished", why="1 of 4 rounds done", id=finished.run.id)
    (result,) = read_outcome(write_outcome(replace(modules, results=(here,)), tmp_path)).results
    assert (result.state, result.run is not None) == ("finished", True)


def test_the_page_names_what_a_trial_has_and_how_many_rounds_a_record(modules: Outcome, tmp_path: Path) -> None:
    """The most there are: evenly spaced ones, and between them the best."""
    words = section_of(DOCS / "records.md", "Records of experiments")
    trials = json.loads(write_outcome(modules, tmp_path).read_text(encoding="utf-8"))["trials"]
    assert {key for trial in trials for key in trial} <= set(re.findall(r"`(\w+)`", words))
    most = max(len(_kept_rounds(rounds, best)) for rounds in range(1, 402) for best in (1, rounds // 2 + 1))
    assert f"`curves` have at most {most} rounds" in words


def test_broken_records_are_one_sentence(modules: Outcome, tmp_path: Path) -> None:
    write_outcome(modules, tmp_path)
    path = tmp_path / "modules.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    record = tmp_path / "runs" / f"{value['trials'][0]['run']}.json"
    record.write_text('{"format": 2, "summary": {}, "config": {}}', encoding="utf-8")
    with pytest.raises(FedBMError, match="run is missing"):
        read_outcome(path)
    record.unlink()
    with pytest.raises(FedBMError, match="there is no file"):
        read_outcome(path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(FedBMError, match="states no format, so fedbm did not write it"):
        read_outcome(path)
    with pytest.raises(FedBMError, match="has no records of experiments"):
        read_outcomes(tmp_path / "runs" / "none")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format": 2, "summary": []}', "run is missing"),
        ('{"format": 2, "run": "a", "config": {}, "summary": {}}', "environment is missing"),
        ('{"format": 2, "summary": [], "run": 3}', "config is missing"),
    ],
)
def test_a_damaged_record_is_named_not_the_experiment(tmp_path: Path, content: str, words: str) -> None:
    outcome = fake_outcome(tmp_path / "runs", "precision", rounds=3)
    path = write_outcome(outcome, tmp_path / "results")
    damaged = sorted((tmp_path / "results" / "runs").glob("*.json"))[0]
    damaged.write_text(content, encoding="utf-8")
    with pytest.raises(FedBMError, match=words) as caught:
        read_outcome(path)
    assert damaged.name in str(caught.value)


@pytest.mark.parametrize("content", ["{", None])
def test_a_damaged_record_of_a_run_that_is_here_is_written_anew(tmp_path: Path, content: str | None) -> None:
    outcome = fake_outcome(tmp_path / "runs", "precision", rounds=3)
    path = write_outcome(outcome, tmp_path / "results")
    damaged = sorted((tmp_path / "results" / "runs").glob("*.json"))[0]
    whole = damaged.read_text(encoding="utf-8")
    damaged.unlink() if content is None else damaged.write_text(content, encoding="utf-8")
    write_outcome(outcome, tmp_path / "results")
    assert damaged.read_text(encoding="utf-8") == whole
    assert csv_of([read_outcome(path)]) == csv_of([outcome])


def test_no_record_is_made_of_a_run_without_rounds(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "runs", rounds=3, leave_out=["rounds.jsonl"])
    with pytest.raises(FedBMError, match=r"has no rounds\.jsonl, from which its record is made"):
        write_record(read_run(run), tmp_path / "record.json")


def test_a_record_under_the_name_of_another_run_is_refused(tmp_path: Path) -> None:
    outcome = fake_outcome(tmp_path / "runs", "precision", rounds=3)
    path = write_outcome(outcome, tmp_path / "results")
    one, other, *_ = sorted((tmp_path / "results" / "runs").glob("*.json"))
    one.write_bytes(other.read_bytes())
    with pytest.raises(FedBMError, match=f'{one.name} is the record of another run, "{other.stem}"$'):
        read_outcome(path)


def test_a_term_of_the_generator_that_was_not_finite_has_no_sum(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "runs", rounds=3)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    lines[0]["generator"] = {"cross_entropy": 1.0, "diversity": 0.5}
    lines[1]["generator"] = {"cross_entropy": 1.0, "diversity": None}
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert record_of(read_run(run))["curves"]["generator"][:2] == [1.5, None]
