"""Search on validation, and what is said of failed runs, rounds to a target and clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run, with_summary

from fedbm.experiments.outcomes import Outcome, read_outcome
from fedbm.experiments.record_store import write_outcome
from fedbm.experiments.search import search
from fedbm.experiments.spec import parse
from fedbm.experiments.trials import Trial
from fedbm.runs.failure import Failure, keep_failure
from fedbm.runs.run_view import read_run

SEARCH = """
[all]
data = "digits"
method = "fedbm"
[axes]
beta = [0.05]
temperature = [7.5, 12.5]
[search]
choose = ["temperature"]
"""


def judged(outcome: Outcome, val: dict[float, float], test: dict[float, float]) -> Outcome:
    """With these validation and test scores at every round."""

    def one(result: Trial) -> Trial:
        assert result.run is not None
        tau, run = result.at["temperature"], result.run
        scores = {"accuracy": val[tau], "f1": val[tau]}
        assert run.summary is not None
        rounds = tuple(replace(record, val={**(record.val or {}), **scores}) for record in run.rounds)
        run = with_summary(run, best={**run.summary.best, "f1": test[tau]})
        return replace(result, run=replace(run, rounds=rounds))

    return replace(outcome, results=tuple(one(result) for result in outcome.results))


def test_validation_chooses_and_the_test_set_has_no_say(tmp_path: Path) -> None:
    made = fake_outcome(tmp_path, parse(SEARCH, "s", "s"), seeds=2, rounds=3)
    for test in ({7.5: 0.1, 12.5: 0.9}, {7.5: 0.9, 12.5: 0.1}):
        found = search(judged(made, {7.5: 0.6, 12.5: 0.5}, test))
        assert [(c.at["temperature"], c.chosen) for c in found] == [(7.5, True), (12.5, False)]
        assert [c.chosen for c in found] == [True, False]
        assert found[0].score is not None
        assert (found[0].score.n, found[0].score.mean) == (2, pytest.approx(1.2))
    tie = search(judged(made, {7.5: 0.5, 12.5: 0.5}, {7.5: 0.1, 12.5: 0.9}))
    assert [c.chosen for c in tie] == [True, False]  # the first
    assert [c.chosen for c in tie] == [True, False]


def test_rows_compete_if_the_search_names_them(tmp_path: Path) -> None:
    rows = "".join(f'[[rows]]\nname = "{name}"\nmethod = "{name.lower()}"\n' for name in ("FedAvg", "FedBM"))
    text = SEARCH.replace("[search]", f"{rows}[search]")
    made = judged(
        fake_outcome(tmp_path, parse(text, "s", "s"), seeds=2, rounds=3), {7.5: 0.6, 12.5: 0.5}, {7.5: 0, 12.5: 0}
    )
    for chosen, axes in ((2, '["temperature"]'), (1, '["row", "temperature"]')):
        experiment = parse(text.replace('["temperature"]', axes), "s", "s")
        outcome = replace(made, search=experiment.search)
        assert read_outcome(write_outcome(outcome, tmp_path / axes)).search == experiment.search
        found = search(outcome)
        assert sum(one.chosen for one in found) == chosen
        assert next(one.row for one in found if one.chosen) == "FedAvg"  # the first on ties


def test_nothing_is_chosen_while_a_run_is_missing(tmp_path: Path) -> None:
    made = fake_outcome(tmp_path, parse(SEARCH, "s", "s"), seeds=2, rounds=3)
    *rest, last = made.results
    found = search(replace(made, results=(*rest, replace(last, state="not run", run=None))))
    assert [(c.score is None, c.chosen) for c in found] == [(False, False), (True, False)]


def test_a_failed_run_is_shown_as_failed(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, "fedavg", done=3, rounds=6)
    keep_failure(folder, Failure("round 4: the update of client 2 is unusable"))
    run = read_run(folder)
    assert run.state == "failed after 3 of 6 rounds: round 4: the update of client 2 is unusable"
    assert read_run(fake_run(tmp_path, "fedprox", done=3, rounds=6)).state == "unfinished, 3 of 6 rounds"
