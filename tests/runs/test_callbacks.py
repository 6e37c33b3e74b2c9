"""Callbacks are called in order, a failing one stops the run without loss, and trackers log every round once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console
from small import TinyBody
from whole_runs import after_round, assert_same_run, folder_of, play, small_plan_of

import fedbm
from fedbm.cli import main
from fedbm.engine import round_loop
from fedbm.engine.round_record import RoundRecord
from fedbm.errors import FedBMError
from fedbm.runs import tracking
from fedbm.runs.batch import BatchRun, run_jobs
from fedbm.runs.tracking import flat_settings, scalars


class Log(fedbm.Callback):
    """Remember all calls, and fail in some of them."""

    def __init__(self, *failing: tuple[str, int]) -> None:
        self.calls: list[tuple[str, int]] = []
        self.runs: list[fedbm.RunInfo] = []
        self._failing = failing

    def _add(self, run: fedbm.RunInfo, hook: str, value: int) -> None:
        self.calls.append((hook, value))
        self.runs.append(run)
        if (hook, value) in self._failing:
            raise ValueError(f"enough of {value}")

    def on_round_start(self, run: fedbm.RunInfo, round_: int) -> None:
        self._add(run, "start", round_)

    def on_evaluation(self, run: fedbm.RunInfo, record: RoundRecord) -> None:
        assert record.val is not None
        self._add(run, "evaluation", record.round)

    def on_round_end(self, run: fedbm.RunInfo, record: RoundRecord) -> None:
        lines = (run.path / "rounds.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["round"] == record.round
        self._add(run, "end", record.round)

    def on_end(self, run: fedbm.RunInfo, finished: bool) -> None:
        assert (run.path / "summary.json").exists() == finished
        self._add(run, "finished" if finished else "stopped", 0)


def simulate(tiny: dict[str, Any], out: Path, *callbacks: Any, **more: Any) -> fedbm.RunView:
    settings = {**tiny, "checkpoint_every": 99, **more}
    data, _ = settings.pop("data"), settings.pop("width")
    return fedbm.simulate(data, body=TinyBody, callbacks=callbacks, out=str(out), **settings)


def test_calls_of_a_run_in_order(tiny: dict[str, Any], tmp_path: Path) -> None:
    log = Log()
    run = simulate(tiny, tmp_path, log, rounds=3, evaluate_every=2)
    expected = [("start", 1), ("end", 1), ("start", 2), ("evaluation", 2), ("end", 2)]
    assert log.calls == [*expected, ("start", 3), ("evaluation", 3), ("end", 3), ("finished", 0)]
    assert {info.id for info in log.runs} == {run.id}
    assert log.runs[0].path == run.path
    assert log.runs[0].settings["train"]["rounds"] == 3
    again = Log()
    simulate(tiny, tmp_path, again, rounds=3, evaluate_every=2)
    assert again.calls == [], "a finished run is only read"


@pytest.mark.parametrize("failing", [("start", 3), ("evaluation", 3), ("end", 3)])
def test_a_callback_that_fails_stops_the_run_and_no_round_is_lost(
    tiny: dict[str, Any], tmp_path: Path, failing: tuple[str, int]
) -> None:
    """Checkpoints are never due here, so what is saved was saved because the run stopped."""
    whole = simulate(tiny, tmp_path / "whole")
    log = Log(failing)
    hook = {"start": "on_round_start", "evaluation": "on_evaluation", "end": "on_round_end"}[failing[0]]
    sentence = f"Log.{hook} failed: ValueError: enough of 3. Run the same command again to continue."
    with pytest.raises(FedBMError, match=sentence):
        simulate(tiny, tmp_path / "broken", log)
    assert log.calls[-1] == ("stopped", 0)
    assert failing in log.calls[-3:]
    log = Log()
    broken = simulate(tiny, tmp_path / "broken", log)
    saved = 2 if failing[0] == "start" else 3  # a round starts where the round before has ended
    assert log.calls[0] == ("start", saved + 1)
    assert log.calls[-3:] == [("evaluation", 4), ("end", 4), ("finished", 0)]
    assert_same_run(whole.path, broken.path)


def test_the_callbacks_after_one_that_fails_are_called_for_that_round_and_for_the_end(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """A resumed run does not repeat a saved round, and a tracker that is not told of the end stays open."""
    log = Log()
    callbacks = [Log(("end", 1), ("stopped", 0)), log]
    with pytest.raises(FedBMError, match="Log.on_round_end failed: ValueError: enough of 1"):
        simulate(tiny, tmp_path, *callbacks)
    assert log.calls[-2:] == [("end", 1), ("stopped", 0)]


def test_a_failure_at_the_end_leaves_a_finished_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="Log.on_end failed: ValueError: enough of 0. The run is saved."):
        simulate(tiny, tmp_path, Log(("finished", 0)), rounds=1)
    assert simulate(tiny, tmp_path, rounds=1).state == "finished"


def test_a_failure_at_the_end_does_not_hide_why_the_run_stopped(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="Log.on_round_end failed: ValueError: enough of 1"):
        simulate(tiny, tmp_path, Log(("end", 1), ("stopped", 0)))


@pytest.mark.parametrize("callback", [Log, print, "log"])
def test_only_objects_of_callbacks_are_accepted(tiny: dict[str, Any], tmp_path: Path, callback: Any) -> None:
    with pytest.raises(FedBMError, match="callbacks must be objects of subclasses of fedbm.Callback, not "):
        simulate(tiny, tmp_path, callback)
    with pytest.raises(FedBMError, match="callbacks must be objects of subclasses of fedbm.Callback, not "):
        fedbm.compare(tiny["data"], ["fedavg"], callbacks=[callback])


@pytest.mark.parametrize("parallel", [True, False])
def test_callbacks_of_a_comparison(scans: Path, tiny: dict[str, Any], tmp_path: Path, parallel: bool) -> None:
    """Runs in other processes call them, too; a failure stops every run, and the same call resumes."""
    images = {"size": 16, "channels": 1}
    data = str(scans) if parallel else fedbm.load(scans, **images)
    settings = {**{key: value for key, value in tiny.items() if key not in ("data", "method", *images)}, "seeds": 1}
    settings |= {"rounds": 3, "checkpoint_every": 99, "out": str(tmp_path), **(images if parallel else {})}
    with pytest.raises(FedBMError, match="Log.on_round_end failed: ValueError: enough of 1. Run the same"):
        fedbm.compare(data, ["fedavg"], callbacks=[Log(("end", 1))], **settings)
    log = Log()
    found = fedbm.compare(data, ["fedavg", "fednh"], callbacks=[log], **settings)
    first, second = (run.id for run in found.runs)
    rounds = {
        run: [
            value for info, (hook, value) in zip(log.runs, log.calls, strict=True) if info.id == run and hook == "end"
        ]
        for run in (first, second)
    }
    assert rounds[second] == [1, 2, 3]
    assert rounds[first] == [1, 2, 3][-len(rounds[first]) :]  # a run in another process may be stopped in a round
    ended = [info.id for info, call in zip(log.runs, log.calls, strict=True) if call == ("finished", 0)]
    began = list(dict.fromkeys(info.id for info in log.runs))
    assert sorted(ended) == sorted(began)
    assert sorted(began) == sorted([first, second])


@pytest.fixture
def loaded(scans: Path, tiny: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Arguments of compare() for two short runs, one after the other in this process."""
    own = {key: value for key, value in tiny.items() if key not in ("data", "method", "size", "channels")}
    data = fedbm.load(scans, size=16, channels=1)
    return {**own, "data": data, "methods": ["fedavg", "fednh"], "seeds": 1, "rounds": 1, "out": str(tmp_path)}


def test_after_a_failure_in_the_last_round_no_other_run_begins(loaded: dict[str, Any]) -> None:
    log = Log(("end", 1))
    with pytest.raises(FedBMError, match="Log.on_round_end failed: ValueError: enough of 1. Run the same"):
        fedbm.compare(callbacks=[log], **loaded)
    assert {info.id.partition("-")[0] for info in log.runs} == {"fedavg"}


def test_every_run_of_a_comparison_ends_for_its_callbacks(loaded: dict[str, Any]) -> None:
    """Even if the end of one fails, or the user interrupts the command."""
    log = Log(("finished", 0))
    with pytest.raises(FedBMError, match="Log.on_end failed: ValueError: enough of 0. The run is saved."):
        fedbm.compare(callbacks=[log], **loaded)
    assert log.calls.count(("finished", 0)) == 2

    class Interrupted(Log):
        def on_evaluation(self, run: fedbm.RunInfo, record: RoundRecord) -> None:
            raise KeyboardInterrupt

    log = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        fedbm.compare(callbacks=[log], **{**loaded, "seeds": [5]})
    assert log.calls[-1] == ("stopped", 0)


def test_a_checkpoint_that_cannot_be_written_on_stopping_is_reported(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed callback says that the run can continue, but from an earlier round than the user expects."""

    def fail(*arguments: Any) -> None:
        raise FedBMError("cannot write checkpoint.safetensors: no space left")

    class Full(fedbm.Callback):
        def on_round_end(self, run: fedbm.RunInfo, record: RoundRecord) -> None:
            if record.round == 2:
                monkeypatch.setattr(round_loop, "save_checkpoint", fail)
                raise ValueError("enough")

    with pytest.raises(FedBMError, match="cannot write checkpoint.safetensors: no space left"):
        simulate(tiny, tmp_path, Full())


# --- trackers -------------------------------------------------------------------------------------------------------


class Fake(fedbm.Callback):
    made: ClassVar[list[Fake]] = []

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.finished: list[bool] = []
        self.made.append(self)

    def on_round_end(self, run: fedbm.RunInfo, record: RoundRecord) -> None:
        self.rounds.append(record.round)

    def on_end(self, run: fedbm.RunInfo, finished: bool) -> None:
        self.finished.append(finished)


def test_the_run_itself_calls_its_tracker(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it works in every command and in every process; it changes neither the run's id nor its result."""
    monkeypatch.setattr(tracking, "TensorBoard", Fake)
    monkeypatch.setattr(Fake, "made", [])
    plain, tracked = (small_plan_of(tiny, tmp_path / track, track=track) for track in ("none", "tensorboard"))
    assert plain.id == tracked.id
    play(plain)
    play(tracked, until=after_round(2))
    play(tracked)
    assert [one.rounds for one in Fake.made] == [[1, 2], [3, 4]]
    assert [one.finished for one in Fake.made] == [[False], [True]]
    for name in ("model.safetensors", "rounds.jsonl", "summary.json"):
        assert (folder_of(tracked) / name).exists()


def test_a_missing_package_is_named_before_anything_is_computed(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, module in (("wandb", "wandb"), ("mlflow", "mlflow.tracking"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(FedBMError, match=f'track = {name} needs a package .*: pip install "fedbm.{name}."'):
            play(small_plan_of(tiny, tmp_path, track=name))
    assert not list(tmp_path.rglob("rounds.jsonl"))
    assert main(["run", "--track", "tensorbord"]) == 2
    assert 'track must be none, tensorboard, mlflow or wandb, not "tensorbord"' in capsys.readouterr().err


def test_a_tracker_that_cannot_start_stops_the_run_with_a_sentence(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(tracking, "MLflow", fail)
    with pytest.raises(FedBMError, match="track = mlflow cannot start: ConnectionError: nobody answers"):
        play(small_plan_of(tiny, tmp_path, track="mlflow"))


def test_a_tracker_that_fails_at_the_end_of_a_finished_run_is_reported(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(fedbm.Callback):
        def on_end(self, run: fedbm.RunInfo, finished: bool) -> None:
            raise ValueError("the server is gone")

    monkeypatch.setattr(tracking, "TensorBoard", Failing)
    plan = small_plan_of({**tiny, "rounds": 1}, tmp_path, track="tensorboard")
    failures = run_jobs([BatchRun(folder_of(plan), "one", plan.config, plan)], Console(quiet=True))
    sentence = "one: Failing.on_end failed: ValueError: the server is gone. The run is saved."
    assert failures == {folder_of(plan): sentence}
    assert (folder_of(plan) / "summary.json").exists()


def test_settings_are_flat_and_without_the_engine(tmp_path: Path) -> None:
    info = fedbm.RunInfo("a", tmp_path, {"train": {"rounds": 3}, "engine": {"device": "cpu"}})
    assert flat_settings(info) == {"train.rounds": 3}


def interrupted_run(tiny: dict[str, Any], out: Path, track: str) -> fedbm.RunView:
    """Run two rounds, then the rest, as after an interruption."""
    plan = small_plan_of({**tiny, "checkpoint_every": 1}, out, track=track)
    play(plan, until=after_round(2))
    play(plan)
    return fedbm.read_run(folder_of(plan))


def test_tensorboard_has_every_round_once(tiny: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = interrupted_run(tiny, tmp_path, "tensorboard")
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    for name, value in scalars(run.rounds[-1]):
        points = events.Scalars(name)
        assert [point.step for point in points] == [1, 2, 3, 4], name
        assert points[-1].value == pytest.approx(value, rel=1e-6)


def test_mlflow_continues_its_run(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run = interrupted_run(tiny, tmp_path, "mlflow")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("fedbm")
    assert experiment is not None
    [found] = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (run.id, "FINISHED")
    assert found.data.params["train.rounds"] == "4"
    history = client.get_metric_history(found.info.run_id, "test/accuracy")
    expected = [record.test["accuracy"] for record in run.rounds if record.test]
    assert [(one.step, one.value) for one in sorted(history, key=lambda one: one.step)] == list(enumerate(expected, 1))


def test_wandb_is_offline_unless_asked_otherwise(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = interrupted_run(tiny, tmp_path, "wandb")
    files = sorted((run.path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert [file.name for file in files] == [f"run-{run.id}.wandb"] * 2
    assert all(file.stat().st_size for file in files)
