"""Reports list the paper's experiments that have no record."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome

from fedbm.cli import main
from fedbm.experiments.outcomes import Outcome, list_unrecorded
from fedbm.experiments.record_store import write_outcome
from fedbm.experiments.spec import find_experiment, parse, shipped_experiments
from fedbm.report.experiments_report import TITLE, experiments_report
from fedbm.report.render.markdown import render_markdown


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return an outcome in which only FedBM at β = 0.1 is finished, at one seed."""
    made = fake_outcome(tmp_path_factory.mktemp("runs"), "comparison-ham10000", seeds=1, rounds=3)
    results = [
        result if result.row == "FedBM" and result.at == {"beta": 0.1} else replace(result, run=None, state="not run")
        for result in made.results
    ]
    return replace(made, results=tuple(results))


def test_nothing_is_listed_for_other_experiments(one_run: Outcome) -> None:
    assert list_unrecorded([replace(one_run, name="my-grid")]) == []
    assert list_unrecorded([replace(one_run, name="digits")]) == [], "an experiment of its own"


def test_every_experiment_of_the_paper_without_a_record_is_listed(one_run: Outcome) -> None:
    found = {one.name: one for one in list_unrecorded([one_run])}
    assert ["comparison-ham10000", *found] == shipped_experiments()
    assert found["language-models"].command == "fedbm reproduce language-models --data-dir DIR"
    text = render_markdown(experiments_report([one_run], elsewhere=()))
    assert "- Which language model reads the concepts: Table XII of the paper. 48 runs not run. `fedbm repro" in text
    assert ". 54 runs not run. `fedbm reproduce search-ham10000" in text


@pytest.mark.parametrize("suffix", ["html", "md", "tex", "csv"])
def test_a_report_of_all_records_lists_experiments_without_a_record(
    one_run: Outcome, suffix: str, tmp_path: Path
) -> None:
    write_outcome(one_run, tmp_path / "results")
    page = tmp_path / f"page.{suffix}"
    assert main(["report", str(tmp_path / "results"), "--to", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    if suffix == "csv":
        lines = {line["experiment"]: line for line in csv.DictReader(text.splitlines())}
        assert list(lines) == shipped_experiments()
        assert {key: value for key, value in lines["modules"].items() if value} == {
            "experiment": "modules",
            "missing": "not run",
            "command": "fedbm reproduce modules --data-dir DIR",
        }
    else:
        assert "fedbm reproduce language-models --data-dir DIR" in text.replace("-{}-", "--")
        assert "1 of 21 runs finished" in text
    assert main(["report", str(tmp_path / "results" / "comparison-ham10000.json"), "--to", str(page)]) == 0
    assert "language-models" not in page.read_text(encoding="utf-8")


def test_experiments_with_records_in_a_folder_below_are_not_listed_as_not_run(one_run: Outcome, tmp_path: Path) -> None:
    write_outcome(one_run, tmp_path / "results")
    digits = fake_outcome(tmp_path / "runs", find_experiment("digits"), seeds=1, rounds=2)
    write_outcome(digits, tmp_path / "results" / "digits")
    page = tmp_path / "page.md"
    assert main(["report", str(tmp_path / "results"), "--to", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "fedbm reproduce digits-mechanism`" in text
    assert "fedbm reproduce digits`" not in text


def test_a_report_is_named_after_the_paper_only_if_it_has_one_of_its_experiments(one_run: Outcome) -> None:
    digits = [replace(one_run, name=name, title=name) for name in ("digits", "digits-mechanism")]
    assert experiments_report(digits).title == "digits; digits-mechanism"
    assert experiments_report([one_run, *digits]).title == TITLE
    assert experiments_report([one_run, replace(one_run, name="mine", title="Mine")]).title == f"{TITLE}; Mine"


def test_a_report_of_another_grid_does_not_mention_the_paper(tmp_path: Path) -> None:
    grid = parse('title = "Mine"\n[all]\ndata = "digits"\nmethod = "fedavg"\n', "mine", "mine.toml")
    write_outcome(fake_outcome(tmp_path / "runs", grid, seeds=1, rounds=2), tmp_path / "results")
    assert main(["report", str(tmp_path / "results"), "--to", str(tmp_path / "page.md")]) == 0
    assert "Not run" not in (tmp_path / "page.md").read_text(encoding="utf-8")
