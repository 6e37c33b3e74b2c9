"""Several runs at once: by turns in one process, in processes, on several devices; each is the run it is alone."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from whole_runs import assert_same_run, plan_of, simulation, small_plan_of
from whole_runs import play as play_alone

from fedbm.engine.checkpoint import load_checkpoint
from fedbm.engine.round_loop import Event
from fedbm.runs import run_file_writer
from fedbm.runs import scheduler as side_by_side
from fedbm.runs.failure import DeviceFailure, Failure
from fedbm.runs.run_config import make_config, to_sections
from fedbm.runs.scheduler import Place, RunProcess, is_last_round, places_for, run_all
from fedbm.runs.scheduler import _start_worker as hire
from fedbm.runs.scheduler import _work as work


def configs_of(settings: dict[str, Any], out: Path, *changes: dict[str, Any]) -> list[Any]:
    return [make_config(to_sections({**settings, **change, "out": str(out)})) for change in changes]


def rounds_of(news: Iterable[tuple[int, Event | Failure]]) -> list[tuple[int, int]]:
    """(number of the run, its round) of every round that ended."""
    return [(number, event.round) for number, event in news if isinstance(event, Event) and event.record is not None]


def test_by_turns_each_run_is_what_it_is_alone(tiny_fedbm: dict[str, Any], tmp_path: Path) -> None:
    """Two seeds and another precision; what one sets for the process does not last beyond its turn."""
    changes = ({"seed": 0}, {"seed": 1, "precision": "fp32"}, {"seed": 2})
    tf32 = torch.backends.cudnn.allow_tf32
    runs = [simulation.iterate_run(small_plan_of(tiny_fedbm, tmp_path / "together", **change)) for change in changes]
    while runs:
        for run in list(runs):
            if next(run, "ended") == "ended":
                runs.remove(run)
            assert torch.backends.cudnn.allow_tf32 == tf32
    for change in changes:
        alone, beside = (small_plan_of(tiny_fedbm, tmp_path / name, **change) for name in ("alone", "together"))
        play_alone(alone)
        assert_same_run(simulation.run_path(beside), simulation.run_path(alone))


def test_runs_that_share_a_process(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, two at a time in one process, as on a GPU: all end, one with a sentence, in the order given."""
    monkeypatch.setattr(side_by_side, "places_for", lambda config: [Place(2, {"threads": 1})])
    changes = ({"seed": 0}, {"seed": 1, "lr": 1e30, "on_nonfinite": "stop"}, {"seed": 2})
    news = list(run_all(configs_of(tiny, tmp_path / "together", *changes)))
    failed = {number: failure for number, failure in news if isinstance(failure, Failure)}
    assert list(failed) == [1]
    assert "is unusable" in failed[1].reason
    assert failed[1].diverged
    rounds = rounds_of(news)
    assert sorted(rounds) == [(n, r) for n in (0, 2) for r in (1, 2, 3, 4)]
    for seed in (0, 2):
        alone, beside = (plan_of(tiny, tmp_path / name, seed=seed) for name in ("alone", "together"))
        play_alone(alone)
        assert_same_run(simulation.run_path(beside), simulation.run_path(alone))


class Pipe:
    """It brings two runs, 0 and 1, and keeps what is told about them."""

    def __init__(self) -> None:
        self.given, self.told = [(number, side_by_side.Job(b"", str(number), None)) for number in (0, 1)], list[Any]()

    def poll(self, timeout: float | None) -> bool:
        return bool(self.given) or timeout is None

    def recv(self) -> Any:
        if not self.given:
            raise EOFError
        return self.given.pop(0)

    def send(self, news: Any) -> None:
        self.told.append(news)


def test_a_fault_of_one_run_is_told_and_the_others_of_its_process_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def played(job: Any) -> Iterator[Event]:
        yield Event(1, job.id)
        if job.id == "0":
            raise ValueError("a fault in the program")
        yield Event(2, job.id)

    monkeypatch.setattr(side_by_side, "advance_run", played)
    pipe = Pipe()
    side_by_side._work(pipe)  # type: ignore[arg-type]
    assert pipe.told == [
        (0, Event(1, "0")),
        (1, Event(1, "1")),
        (0, Failure("ValueError: a fault in the program")),
        (1, Event(2, "1")),
        (1, None),
    ]
    assert "Traceback" in capsys.readouterr().err


def test_when_the_gpu_fails_all_runs_of_the_process_fail_and_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def played(job: Any) -> Iterator[Event]:
        yield Event(1, job.id)
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for it in the manual.")

    monkeypatch.setattr(side_by_side, "advance_run", played)
    pipe = Pipe()
    side_by_side._work(pipe)  # type: ignore[arg-type]
    why = DeviceFailure("The GPU failed: CUDA error: an illegal memory access was encountered")
    assert pipe.told == [(0, Event(1, "0")), (1, Event(1, "1")), (0, why), (1, why)]


class ScriptedPipe:
    """The pipe of a process that gives the news with which it is made, each about its latest run, and ends."""

    def __init__(self, news: list[Any]) -> None:
        self.news = news

    def send(self, message: tuple[int, Any]) -> None:
        self.number, _ = message

    def recv(self) -> tuple[int, Any]:
        if not self.news:
            raise EOFError
        return self.number, self.news.pop(0)


def test_a_new_process_takes_the_place_of_one_where_the_gpu_failed(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = DeviceFailure("The GPU failed: CUDA error: out of memory")
    script_processes(monkeypatch, 1, [bad], [None, None])
    assert list(run_all(configs_of(tiny, tmp_path, *({"seed": seed} for seed in range(3))))) == [(0, bad)]


def test_a_place_whose_gpu_has_never_worked_takes_no_more_runs(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, begun = DeviceFailure("The GPU failed: CUDA error: out of memory"), Event(1, "train")
    script_processes(monkeypatch, 2, [begun, bad], [None, None, None])
    news = list(run_all(configs_of(tiny, tmp_path, *({"seed": seed} for seed in range(4)))))
    assert news == [(0, begun), (0, bad)]


def test_a_run_that_its_process_has_not_received_fails_for_the_same_reason(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = DeviceFailure("The GPU failed: CUDA error: out of memory")
    script_processes(monkeypatch, 1, [bad])
    monkeypatch.setattr(side_by_side, "places_for", lambda config: [Place(2, {})])
    assert list(run_all(configs_of(tiny, tmp_path, {"seed": 0}, {"seed": 1}))) == [(1, bad), (0, bad)]


def script_processes(monkeypatch: pytest.MonkeyPatch, places: int, *scripts: list[Any]) -> None:
    """Let each process that starts give the news of the next script, and then end."""
    remaining = list(scripts)

    def start(place: Place) -> RunProcess:
        pipe: Any = ScriptedPipe(remaining.pop(0))
        return RunProcess(SimpleNamespace(join=lambda: None, exitcode=0), pipe, place)

    monkeypatch.setattr(side_by_side, "places_for", lambda config: [Place(1, {})] * places)
    monkeypatch.setattr(side_by_side, "_start_worker", start)
    monkeypatch.setattr(side_by_side, "wait", lambda pipes, seconds: pipes)
    monkeypatch.setattr(RunProcess, "stop", lambda process: None)


def test_a_process_that_is_killed_takes_its_run_and_no_other(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = []
    monkeypatch.setattr(side_by_side, "cores", lambda: 1)
    for number, event in run_all(configs_of(tiny, tmp_path, {"seed": 0, "rounds": 400}, {"seed": 1})):
        if not news:
            [process] = multiprocessing.active_children()
            os.kill(process.pid, signal.SIGKILL)
        news.append((number, event))
    assert (0, Failure("its process ended with status -9")) in news
    ended = [event.round for number, event in news if number == 1 and event.record is not None]
    assert ended == [1, 2, 3, 4], "in a process that took its place"


def test_turning_away_ends_the_processes_and_the_run_can_be_resumed(tiny: dict[str, Any], tmp_path: Path) -> None:
    [config] = configs_of(tiny, tmp_path / "resumed", {})
    events = run_all([config])
    assert any(isinstance(event, Event) and event.record is not None for _, event in events)
    events.close()
    assert multiprocessing.active_children() == []
    list(run_all([config]))
    alone, resumed = (plan_of(tiny, tmp_path / name, workers=1) for name in ("alone", "resumed"))
    play_alone(alone)
    assert_same_run(simulation.run_path(resumed), simulation.run_path(alone))


def test_processes_are_stopped_in_parallel(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, the last turns of many processes would take minutes."""
    both, stop = threading.Barrier(2, timeout=60), RunProcess.stop
    monkeypatch.setattr(RunProcess, "stop", lambda worker: (both.wait(), stop(worker)))
    monkeypatch.setattr(side_by_side, "cores", lambda: 2)
    events = run_all(configs_of(tiny, tmp_path, {"seed": 0}, {"seed": 1}))
    next(events)
    events.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("together", [1, 2])
def test_near_the_deadline_runs_end_after_a_round_and_lose_nothing(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Checkpoints are far between: what is gone on from was written on ending. The third run never began."""
    monkeypatch.setattr(side_by_side, "places_for", lambda config: [Place(together, {"workers": 1})])
    hired = []
    monkeypatch.setattr(side_by_side, "_start_worker", lambda place: hired.append(hire(place)) or hired[-1])
    monkeypatch.setattr(side_by_side, "_work", work_for_three_rounds)
    monkeypatch.setattr(side_by_side, "is_last_round", ends_round_three)
    settings = {**tiny, "rounds": 15, "checkpoint_every": 1000}
    configs = configs_of(settings, tmp_path / "asked", *({"seed": seed} for seed in range(3)))
    ended: dict[int, list[int]] = {}
    for number, event in run_all(configs, deadline=time.time() + 600):
        assert isinstance(event, Event)
        if event.record is not None:
            ended.setdefault(number, []).append(event.round)
    assert ended == {number: [1, 2, 3] for number in range(together)}
    assert [worker.process.exitcode for worker in hired] == [0], "not killed: it had no run any more"
    for number in ended:
        begun = plan_of(settings, tmp_path / "asked", seed=number, workers=1)
        _, progress = load_checkpoint(simulation.run_path(begun), begun.id, torch.device("cpu")) or pytest.fail("none")
        assert progress.round == 3
    monkeypatch.undo()
    list(run_all(configs[:1]))
    alone, resumed = (plan_of(settings, tmp_path / name, seed=0, workers=1) for name in ("alone", "asked"))
    play_alone(alone)
    assert_same_run(simulation.run_path(resumed), simulation.run_path(alone))


def work_for_three_rounds(pipe: Any) -> None:
    side_by_side.is_last_round = ends_round_three
    work(pipe)


def ends_round_three(event: Event, deadline: float | None) -> bool:
    return event.record is not None and event.round == 3


def test_a_run_stops_when_its_next_round_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 100.0)
    ended = Event(1, "done", record=SimpleNamespace(seconds={"total": 5.0}))  # type: ignore[arg-type]
    assert [is_last_round(ended, deadline) for deadline in (None, 106.0, 104.0, 90.0)] == [False, False, True, True]
    assert not is_last_round(Event(1, "train"), 90.0), "it is in the middle of a round"
    assert not is_last_round(replace(ended, last=True), 90.0), "it has no next round, and writes its files"


def test_when_no_second_is_left_runs_end_though_none_has_anything_to_say(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round may go on for minutes without an event."""
    monkeypatch.setattr(side_by_side, "_work", silent)
    news = run_all(configs_of(tiny, tmp_path, {}), deadline=(deadline := time.time() + 20))
    assert next(news) == (0, Event(1, "train"))
    monkeypatch.setattr(time, "time", lambda: deadline)
    assert list(news) == []
    assert multiprocessing.active_children() == []


def silent(pipe: Any) -> None:
    """A process that says one thing and then works for long."""
    number, _ = pipe.recv()
    pipe.send((number, Event(1, "train")))
    time.sleep(600)


def test_when_no_second_is_left_what_was_said_is_heard_and_no_more(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that always have something to say do not outlast the time they have."""
    monkeypatch.setattr(side_by_side, "_work", talkative)
    news = run_all(configs_of(tiny, tmp_path, {}), deadline=(deadline := time.time() + 20))
    assert [next(news), next(news)] == [(0, Event(1, "train")), (0, Event(2, "train"))]
    monkeypatch.setattr(time, "time", lambda: deadline)
    assert len(list(news)) <= 1


def talkative(pipe: Any) -> None:
    number, _ = pipe.recv()
    for round_ in itertools.count(1):
        pipe.send((number, Event(round_, "train")))


def test_places(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [cpu] = configs_of(tiny, tmp_path, {})
    monkeypatch.setattr(side_by_side, "cores", lambda: 3)
    assert places_for(cpu) == [(1, {"threads": 1, "workers": 1})] * 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    every, second = configs_of(tiny, tmp_path, {"device": "cuda"}, {"device": "cuda:1", "runs_per_gpu": 5})
    assert places_for(every) == [(3, {"device": "cuda:0"}), (3, {"device": "cuda:1"})]
    assert places_for(second) == [(5, {"device": "cuda:1"})]
    [shared] = configs_of(tiny, tmp_path, {"device": "cuda:1", "runs_per_gpu": 5, "processes_per_gpu": 2})
    assert places_for(shared) == [(3, {"device": "cuda:1"}), (2, {"device": "cuda:1"})]
    [many] = configs_of(tiny, tmp_path, {"device": "cuda:1", "runs_per_gpu": 2, "processes_per_gpu": 9})
    assert places_for(many) == [(1, {"device": "cuda:1"})] * 2, "no process without a run"
    assert list(run_all([])) == []


def test_what_the_engine_says_is_shown_and_recorded_once(tiny: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    prepare_round_loop = simulation.prepare_round_loop

    def talkative(*args: Any) -> Any:
        federation = prepare_round_loop(*args)
        federation.notes.append("going on with fewer slots")
        return federation

    monkeypatch.setattr(simulation, "prepare_round_loop", talkative)
    events = play_alone(plan_of(tiny, tmp_path))
    assert [(event.round, event.note) for event in events if event.note] == [(1, "going on with fewer slots")]
    records = [event.record["notes"] for event in events if event.record is not None]
    assert records == [("going on with fewer slots",), (), (), ()]


def test_generated_images_are_drawn_on_the_way(tiny_fedbm: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run_file_writer, "DRAWN_ROUNDS", (1, 2, 4))
    plan = plan_of(tiny_fedbm, tmp_path)
    play_alone(plan)
    drawn = simulation.run_path(plan) / "generated"
    assert sorted(path.name for path in drawn.iterdir()) == ["2.png", "4.png"], "there is no generator after round 1"
    assert (drawn / "4.png").read_bytes() == (drawn.parent / "generated.png").read_bytes()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.timeout(600)
def test_runs_in_two_processes_on_one_gpu_are_what_they_are_alone(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Without MPS the processes take turns on the device. Five runs, so that a process takes a second one later."""
    shared = {**tiny, "device": "cuda", "deterministic": True, "runs_per_gpu": 4, "processes_per_gpu": 2}
    configs = configs_of(shared, tmp_path / "together", *({"seed": seed} for seed in range(5)))
    assert [share for share, _ in places_for(configs[0])] == [2, 2]
    news = list(run_all(configs))
    assert [one for _, one in news if isinstance(one, Failure)] == []
    assert sorted(rounds_of(news)) == [(number, round_) for number in range(5) for round_ in range(1, 5)]
    for seed in range(5):
        alone = plan_of(shared, tmp_path / "alone", seed=seed)
        play_alone(alone)
        assert_same_run(tmp_path / "together" / alone.id, simulation.run_path(alone))
