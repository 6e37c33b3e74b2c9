"""What is not run is listed as not run, with the command and a time that was measured, or that none was."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome

from fedbm.cli import main
from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.record_store import write_outcome
from fedbm.experiments.remaining import left_of, measured_in, timed, unrecorded
from fedbm.experiments.spec import parse, shipped

SETTINGS = {
    "data": {"name": "ham10000", "partition": "dirichlet", "beta": 0.1, "clients": 10},
    "model": {},
    "method": {"name": "fedbm"},
    "train": {"rounds": 200, "seed": 0, "precision": "bf16"},
}


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of eleven methods FedBM at β = 0.1 alone is finished, at one seed: 200 rounds, 20 seconds of the device."""
    made = fake_outcome(tmp_path_factory.mktemp("runs"), "comparison-ham10000", seeds=1, rounds=3)
    results = []
    for result in made.results:
        if result.row == "FedBM" and result.at == {"beta": 0.1}:
            assert result.run is not None
            summary = {**(result.run.summary or {}), "rounds": 200}
            run = replace(result.run, config=SETTINGS, summary=summary, planned=200, own_seconds=20.0)
            results.append(replace(result, run=run))
        else:
            results.append(replace(result, run=None, state="not run"))
    return replace(made, results=tuple(results))


def test_a_run_takes_what_runs_like_it_took(one_run: Outcome) -> None:
    takes = {(r.row, r.at["beta"]): r.takes for r in timed(one_run, measured_in([one_run])).results}
    assert takes.pop(("FedBM", 0.05)) == "about 20.0 s on cpu"
    assert set(takes.values()) == {""}  # another method is not alike, and what is finished takes nothing


def test_one_slow_run_does_not_stand_for_its_kind(one_run: Outcome) -> None:
    """Of 20, 22 and 96 seconds the middle one: the last had shared its device with more than the others."""
    (done,) = (r for r in one_run.results if r.run)
    assert done.run is not None
    others = (replace(done.run, id=name, own_seconds=seconds) for name, seconds in (("b", 96.0), ("c", 22.0)))
    more = (replace(done, seed=seed, run=run) for seed, run in enumerate(others, 1))
    of_three = replace(one_run, results=(*one_run.results, *more))
    takes = {r.takes for r in timed(of_three, measured_in([of_three])).results if r.at["beta"] == 0.05}
    assert takes == {"", "about 22.0 s on cpu"}


def test_a_time_by_the_clock_is_told_from_a_share_of_the_device(one_run: Outcome) -> None:
    """Beside runs whose share was measured it would look as if the method took longer."""
    results = tuple(replace(r, run=replace(r.run, own_seconds=None)) if r.run else r for r in one_run.results)
    unshared = replace(one_run, results=results)
    (takes,) = {r.takes for r in timed(unshared, measured_in([unshared])).results} - {""}
    assert takes.endswith(" s on cpu by the clock, perhaps shared")
    left = left_of(unshared, measured_in([unshared]))
    assert left is not None
    assert (
        "by the times of runs like them (by the clock, perhaps shared with other runs and so too long);" in left.words
    )


def test_what_is_left_counts_a_run_once_and_says_what_was_not_measured(one_run: Outcome) -> None:
    left = left_of(one_run, measured_in([one_run]))
    assert left is not None
    assert (left.runs, left.known, left.seconds) == (20, 1, 20.0)  # Central stands in both columns
    assert left.words == (
        "20 runs. 1 of them would take about 20.0 s on cpu, by the times of runs like them; "
        "nothing like the other 19 is on record, so their time is not known; --budget 2m measures it."
    )


def test_what_was_told_where_runs_were_recorded_is_kept(one_run: Outcome) -> None:
    """Times that another device knew are in the records; what runs on record tell goes before them."""
    told = {"FedAvg": "about 1 min 0 s on GPU", "FedBM": "about 9 h 0 min on GPU"}
    results = tuple(replace(r, takes=told.get(r.row, "")) if r.run is None else r for r in one_run.results)
    left = left_of(replace(one_run, results=results), measured_in([one_run]))
    assert left is not None
    assert left.words == (
        "20 runs. 1 of them would take about 20.0 s on cpu, by the times of runs like them; 2 of them would take about "
        "1 min 0 s on GPU each; nothing like the other 17 is on record, so their time is not known; --budget 2m "
        "measures it."
    )


@pytest.mark.parametrize("state", ["unfinished", "failed"])
def test_what_the_rest_of_a_run_takes_is_kept(one_run: Outcome, state: str) -> None:
    """It was said where its checkpoint is; runs like it tell of a whole one, for want of such a word."""

    def begun(takes: str) -> Outcome:
        changed = {"state": state, "why": "167 of 200 rounds played", "takes": takes}
        results = [replace(r, **changed) if r.row == "FedBM" and r.run is None else r for r in one_run.results]
        return replace(one_run, results=tuple(results))

    for takes, told, words in (
        ("about 3.3 s on GPU", "about 3.3 s on GPU", "20 runs. 1 of them would take about 3.3 s on GPU; nothing like"),
        ("", "about 20.0 s on cpu", "20 runs. 1 of them would take about 20.0 s on cpu, by the times of runs like"),
    ):
        measured = measured_in([begun(takes)])
        assert {r.takes for r in timed(begun(takes), measured).results if r.state == state} == {told}
        left = left_of(begun(takes), measured)
        assert left is not None
        assert left.words.startswith(words)


def test_nothing_is_left_of_what_is_finished_or_not_the_papers(one_run: Outcome) -> None:
    measured = measured_in([one_run])
    assert left_of(replace(one_run, results=tuple(r for r in one_run.results if r.run)), measured) is None
    assert left_of(replace(one_run, name="my-grid"), measured) is None
    assert unrecorded([replace(one_run, name="my-grid")], measured) == []


def test_every_experiment_of_the_paper_without_a_record_is_listed(one_run: Outcome) -> None:
    found = {one.name: one for one in unrecorded([one_run], measured_in([one_run]))}
    assert ["comparison-ham10000", *found] == shipped()
    assert found["language-models"].sentence == (
        "Table XII of the paper. Not run; it needs the images of kvasir and oct-c8, and the weights of bert, roberta "
        "and biomedclip, which do not come with the package. 48 runs. Nothing like them is on record, so their time is "
        "not known; --budget 2m measures it."
    )
    assert found["language-models"].command == "fedbm reproduce language-models --data-dir DIR"
    assert "54 runs. 18 of them would take about 6 min 0 s on cpu" in found["search-ham10000"].sentence


@pytest.mark.parametrize("suffix", ["html", "md", "tex", "csv"])
def test_a_report_of_all_records_lists_what_has_none(one_run: Outcome, suffix: str, tmp_path: Path) -> None:
    write_outcome(one_run, tmp_path / "results")
    page = tmp_path / f"page.{suffix}"
    assert main(["report", str(tmp_path / "results"), "--to", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    if suffix == "csv":
        lines = {line["experiment"]: line for line in csv.DictReader(text.splitlines())}
        assert list(lines) == shipped()
        assert {key: value for key, value in lines["modules"].items() if value} == {
            "experiment": "modules",
            "missing": "not run",
            "missing_in_words": "it needs the images of kvasir and oct-c8",
            "takes": "36 runs. Nothing like them is on record, so their time is not known; --budget 2m measures it.",
            "command": "fedbm reproduce modules --data-dir DIR",
        }
        first = next(line for line in csv.DictReader(text.splitlines()) if line["row"] == "FedBM" and line["missing"])
        assert first["takes"] == "about 20.0 s on cpu"
    else:
        assert "fedbm reproduce language-models --data-dir DIR" in text.replace("-{}-", "--")
        assert "1 of them would take about 20.0 s on cpu" in text
    assert main(["report", str(tmp_path / "results" / "comparison-ham10000.json"), "--to", str(page)]) == 0
    assert "language-models" not in page.read_text(encoding="utf-8")


def test_a_grid_of_ones_own_says_nothing_of_the_paper(tmp_path: Path) -> None:
    grid = parse('title = "Mine"\n[all]\ndata = "digits"\nmethod = "fedavg"\n', "mine", "mine.toml")
    write_outcome(fake_outcome(tmp_path / "runs", grid, seeds=1, rounds=2), tmp_path / "results")
    assert main(["report", str(tmp_path / "results"), "--to", str(tmp_path / "page.md")]) == 0
    assert "Not run" not in (tmp_path / "page.md").read_text(encoding="utf-8")
