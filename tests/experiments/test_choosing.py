"""Search on validation, estimates from what was measured, portions, and what was failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run
from rich.console import Console

from fedbm.cli.compare import play
from fedbm.engine.checkpoint import Progress, save_checkpoint
from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.experiments.estimate import estimate
from fedbm.experiments.outcomes import Outcome, Result
from fedbm.experiments.search import search
from fedbm.experiments.spec import parse
from fedbm.experiments.trials import Standing, trials
from fedbm.runs.config import Config, make_config
from fedbm.runs.failure import keep_failure
from fedbm.runs.reader import read_run
from fedbm.runs.record import write_record
from fedbm.runs.timing_log import Portion, measured, own_seconds, read_portions, speed

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

    def one(result: Result) -> Result:
        assert result.run is not None
        tau, run = result.at["temperature"], result.run
        scores = {"accuracy": val[tau], "f1": val[tau]}
        rounds = tuple({**record, "val": {**record["val"], **scores}} for record in run.rounds)
        summary = {**(run.summary or {}), "best": {**(run.summary or {})["best"], "f1": test[tau]}}
        return replace(result, run=replace(run, rounds=rounds, summary=summary))

    return replace(outcome, results=tuple(one(result) for result in outcome.results))


def test_validation_chooses_and_the_test_set_has_no_say(tmp_path: Path) -> None:
    made = fake_outcome(tmp_path, parse(SEARCH, "s", "s"), seeds=2, rounds=3)
    for test in ({7.5: 0.1, 12.5: 0.9}, {7.5: 0.9, 12.5: 0.1}):
        found = search(judged(made, {7.5: 0.6, 12.5: 0.5}, test))
        assert [(c.tried["temperature"], c.chosen) for c in found] == [(7.5, True), (12.5, False)]
        assert [c.words for c in found] == ["chosen", ""]
        assert found[0].score is not None
        assert (found[0].score.n, found[0].score.mean) == (2, pytest.approx(1.2))
    tie = search(judged(made, {7.5: 0.5, 12.5: 0.5}, {7.5: 0.1, 12.5: 0.9}))
    assert [c.chosen for c in tie] == [True, False]  # the first
    assert [c.words for c in tie] == ["chosen, the first of 2 alike", ""]


def test_a_row_without_the_searched_option_has_nothing_to_choose(tmp_path: Path) -> None:
    """FedAvg has no τ: its two combinations are the same runs, by their ids, finished or not."""
    rows = "".join(f'[[rows]]\nname = "{name}"\nmethod = "{name.lower()}"\n' for name in ("FedAvg", "FedBM"))
    made = fake_outcome(tmp_path, parse(SEARCH.replace("[search]", f"{rows}[search]"), "s", "s"), seeds=2, rounds=3)
    same = {"FedAvg": "fedavg", "FedBM": "fedbm-{}"}
    results = tuple(replace(r, id=f"{same[r.row].format(r.at['temperature'])}-{r.seed}") for r in made.results)
    assert {c.row for c in search(made)} == {"FedAvg", "FedBM"}  # of which no id is known
    assert [c.row for c in search(replace(made, results=results))] == ["FedBM", "FedBM"]


def test_nothing_is_chosen_while_a_run_is_missing(tmp_path: Path) -> None:
    made = fake_outcome(tmp_path, parse(SEARCH, "s", "s"), seeds=2, rounds=3)
    *rest, last = made.results
    found = search(replace(made, results=(*rest, replace(last, state="not run", run=None))))
    assert [(c.score is None, c.chosen) for c in found] == [(False, False), (True, False)]


def test_an_estimate_is_rounds_left_times_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    grid = parse(
        '[all]\ndata = "digits"\nrounds = 50\nstem = "3x3"\nwidth = 16\n'
        '[axes]\nmethod = ["fedavg", "fedbm", "fedprox"]',
        "g",
        "g",
    )
    train = {"epochs": 1, "batch": 8, "participation": 0.5, "precision": "tf32"}
    seen = {m: read_run(fake_run(out, m, rounds=6, train=train)) for m in ("fedavg", "fedbm")}
    rate = {m: run.summary["seconds"] / 6 for m, run in seen.items() if run.summary}
    standings = [
        Standing(t, "not run", out / f"new-{t.config.method.name}", "", t.config) for t in trials(grid, range(1), {})
    ]
    told = estimate(standings, out, tmp_path / "results", "cpu", at_once=2)
    assert (len(told.each), told.unknown, told.overlap) == (2, 1, 2.0)
    assert told.seconds == pytest.approx(50 * (rate["fedavg"] + rate["fedbm"]) / 2)
    assert (
        estimate(standings, out, tmp_path / "results", "NVIDIA H200", at_once=1).each == {}
    )  # another device tells nothing
    with measured(out, "cpu") as portion:
        portion.played("a", 3.0)
        portion.began -= 1.0  # a second ago
    overlap = speed(read_portions(out), "cpu")
    assert overlap is not None
    assert 2 < overlap < 3
    assert estimate(standings, out, tmp_path / "results", "cpu", at_once=2).overlap == overlap
    assert estimate(standings[:1], out, tmp_path / "results", "cpu", at_once=2).overlap == 1  # beside itself runs none
    for run in seen.values():
        write_record(run, tmp_path / "results" / "runs" / f"{run.id}.json")
    from_records = estimate(standings, tmp_path / "elsewhere", tmp_path / "results", "cpu", at_once=2)
    assert from_records.seconds == pytest.approx(told.seconds)


@pytest.mark.parametrize(
    ("setting", "alike"),
    [
        ("beta = 0.3", True),
        ("rounds = 9", True),
        ("lambda_div = 0.5", True),
        ("lambda_div = 0.0", False),
        ("width = 32", False),
        ("size = 64", False),
        ("pseudo_batch = 32", False),
        ("generator = false", False),
        ("clients = 20", False),
        ("batch = 16", False),
    ],
)
def test_only_runs_with_as_much_work_a_round_foretell(tmp_path: Path, setting: str, alike: bool) -> None:
    out = tmp_path / "runs"
    fake_run(out, "fedbm", rounds=6)
    shared = {"data": '"digits"', "method": '"fedbm"', "stem": '"3x3"', "width": "16"}
    key, value = setting.split(" = ")
    text = "[all]\n" + "\n".join(f"{k} = {v}" for k, v in {**shared, key: value}.items())
    (trial,) = trials(parse(text, "g", "g"), range(1), {})
    told = estimate([Standing(trial, "not run", out / "new", "", trial.config)], out, tmp_path, "cpu", at_once=1)
    assert (len(told.each), told.unknown) == ((1, 0) if alike else (0, 1))


@pytest.mark.parametrize(("kept", "left"), [(3, 3), (2, 4), (None, 6)])
def test_what_is_left_of_a_run_is_what_its_checkpoint_has_not_behind_it(
    tmp_path: Path, kept: int | None, left: int
) -> None:
    """Three of six rounds on a CPU: their pace tells what the rest takes there, and nothing of a GPU."""
    folder = fake_run(tmp_path, "fedavg", rounds=6, done=3)
    if kept is not None:
        save_checkpoint(folder, folder.name, {}, Progress(round=kept))
    (trial,) = trials(parse('[all]\ndata = "digits"\nmethod = "fedavg"\nrounds = 6', "g", "g"), range(1), {})
    begun = [Standing(trial, "unfinished", folder, "", trial.config)]
    there = estimate(begun, tmp_path, tmp_path / "results", "cpu", at_once=1)
    pace = [record["seconds"]["total"] for record in read_run(folder).rounds[1:]]
    assert there.seconds == pytest.approx(left * sum(pace) / 2)
    here = estimate(begun, tmp_path, tmp_path / "results", "NVIDIA H200", at_once=1)
    assert (here.each, here.unknown) == ({}, 1)


def test_portions_divide_the_clock_among_runs(tmp_path: Path) -> None:
    """Ten seconds, of which a worked 12 and b 4 side by side: a's own are 7.5, b's 2.5."""
    one = Portion("cuda", 10.0, {"a": 3, "b": 1}, {"a": 12.0, "b": 4.0})
    two = Portion("cuda", 6.0, {"a": 1}, {"a": 5.0})
    assert (one.share("a"), one.share("b")) == (7.5, 2.5)
    assert own_seconds([one, two], "a", 4) == 13.5
    assert own_seconds([one, two], "a", 3) == pytest.approx(13.5 * 3 / 4)  # one was lost and played again
    assert own_seconds([one, two], "a", 5) is None  # a round of it was played where no portion tells
    assert own_seconds([one, two], "c", 1) is None
    assert own_seconds([one, two], "c", 0) is None
    assert speed([one, two], "cuda") == pytest.approx(5 / 6)
    assert speed([one], "cpu") is None
    with measured(tmp_path, "cpu"):
        pass
    assert read_portions(tmp_path) == []  # nothing was played
    (tmp_path / "portions.jsonl").write_text("half a li", encoding="utf-8")
    with pytest.raises(FedBMError, match="is damaged"):
        read_portions(tmp_path)


def test_a_portion_that_is_killed_keeps_what_was_saved(tmp_path: Path) -> None:
    with measured(tmp_path, "cpu") as first:
        first.played("a", 3.0)
    with measured(tmp_path, "cpu") as portion:
        portion.played("b", 1.0)
        portion.save()
        portion.played("b", 1.0)
        seen = read_portions(tmp_path)  # as a process started after the kill would
        with measured(tmp_path, "cpu") as beside:  # by another process, say
            beside.played("c", 1.0)
    assert [p.rounds for p in seen] == [{"a": 1}, {"b": 1}]
    assert [p.rounds for p in read_portions(tmp_path)] == [
        {"a": 1},
        {"c": 1},
        {"b": 2},
    ]  # one line each


def test_what_a_finished_run_took_is_kept_before_the_others_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(configs: Sequence[Config], **_: Any) -> Iterator[tuple[int, Event]]:
        for number, round_ in ((0, 1), (1, 1), (0, 2)):
            yield number, Event(round_, "done", record={"round": round_, "seconds": {"total": 1.0}})
        assert [p.rounds for p in read_portions(tmp_path)] == [{"one": 2, "two": 1}]
        yield 1, Event(2, "done", record={"round": 2, "seconds": {"total": 1.0}})

    monkeypatch.setattr("fedbm.cli.compare.run_all", events)
    monkeypatch.setattr("fedbm.cli.compare.show_of", lambda *_: lambda news: None)
    config = make_config({"train": {"rounds": 2}, "engine": {"device": "cpu"}})
    runs = {tmp_path / name: (name, config) for name in ("one", "two")}
    assert play(runs, Console()) == []
    assert [p.rounds for p in read_portions(tmp_path)] == [{"one": 2, "two": 2}]


def test_a_failed_run_is_shown_as_failed(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, "fedavg", done=3, rounds=6)
    keep_failure(folder, "round 4: the update of client 2 is unusable")
    run = read_run(folder)
    assert run.state == "failed after 3 of 6 rounds: round 4: the update of client 2 is unusable"
    assert read_run(fake_run(tmp_path, "fedprox", done=3, rounds=6)).state == "unfinished, 3 of 6 rounds"
