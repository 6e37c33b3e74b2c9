"""Client processes compute the same as the reference, bit for bit, and handle deaths and objects without pickle."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from forking import start_command
from small import TinyBody
from torch import nn
from whole_runs import assert_same_run, command, folder_of, plan_of, play, simulation, small_plan_of, stop_after

import fedbm
from fedbm import FedBMError
from fedbm.cli import main
from fedbm.engine.clients import backends
from fedbm.engine.clients import worker_cohort as workers
from fedbm.engine.clients.cohort import LocalSetup
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.round_loop import Event
from fedbm.methods import METHODS, FedAvg
from fedbm.methods.base import Batch

pytestmark = pytest.mark.long
posix = pytest.mark.skipif(os.name != "posix", reason="signals and /proc as Linux has them")


@dataclasses.dataclass(frozen=True)
class Odd(FedAvg):
    """A method of the user's own, in a module that can be imported: named as no method of the package is."""

    name: ClassVar[str] = "odd"

    def loss(self, model: nn.Module, batch: Batch, context: Any) -> dict[str, torch.Tensor]:
        print("what a method prints disturbs nobody")
        return {name: 2 * term for name, term in super().loss(model, batch, context).items()}


@dataclasses.dataclass(frozen=True)
class Careless(Odd):
    """A method with a mistake, in a client process only after the first round."""

    name: ClassVar[str] = "careless"

    def start_client(self, model: nn.Module, received: Any, client: Any, facts: Any) -> Any:
        raise KeyError("body.nowhere")


@dataclasses.dataclass(frozen=True)
class Poisoned(FedAvg):
    """Client 1 sends infinities, head first."""

    name: ClassVar[str] = "poisoned"

    def finish_client(self, model: nn.Module, data: Any, context: Any, facts: Any) -> Any:
        upload, own = super().finish_client(model, data, context, facts)
        if facts.client == 1:
            upload = {name: upload[name] / 0 for name in sorted(upload, reverse=True) if "weight" in name}
        return upload, own


def pair(settings: dict[str, Any], tmp_path: Path, **more: Any) -> tuple[Path, Path]:
    """Return the folders of the same run, trained by the reference and by two processes."""
    folders = []
    for workers_ in (1, 2):
        plan = small_plan_of(settings, tmp_path / str(workers_), workers=workers_, **more)
        play(plan)
        folders.append(folder_of(plan))
    return folders[0], folders[1]


class InThisProcess:
    """A client process's work done by a thread: what crosses is pickled as between processes."""

    turn = threading.Lock()  # random numbers of the whole process are set and drawn by one at a time
    exitcode = 0

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, target: Any, folder: Path) -> tuple[Any, Any]:
        ours, theirs = multiprocessing.Pipe()
        return cls(theirs), ours

    def _serve(self) -> None:
        with self.turn, suppress(EOFError, OSError):
            workers.serve(self)  # type: ignore[arg-type]

    def recv_bytes(self) -> bytes:
        self.turn.release()
        try:
            return bytes(self._pipe.recv_bytes())
        finally:
            self.turn.acquire()

    def send_bytes(self, answer: bytes) -> None:
        self._pipe.send_bytes(answer)

    def kill(self) -> None:
        pass

    def join(self) -> None:
        self._thread.join()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "central"])
def test_equal_to_the_reference(
    method: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds of every method with BatchNorm, client state and kept momentum: records, states and model.

    The processes are real for FedBM, with its generator and kept momentum.
    """
    if method != "fedbm":
        monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    settings = tiny_fedbm if method == "fedbm" else {**tiny, "method": method}
    settings = settings | ({"concept_file": tiny_fedbm["concept_file"]} if method == "fedglcl" else {})
    settings = settings | ({"optimizer": "adam", "lr": 0.001} if method in ("fedavg", "fedrep") else {})
    assert_same_run(*pair(settings, tmp_path, keep_optimizer=True, clients=5, participation=0.7, rounds=3, beta=0.5))


def test_equal_to_the_reference_with_frozen_batch_norm(
    tiny_fedbm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with generated images in the statistics alone; BatchNorm is frozen after the second of three rounds."""
    monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    more = {"pseudo_in": "statistics", "freeze_batchnorm_after": 2, "keep_optimizer": True}
    assert_same_run(*pair(tiny_fedbm, tmp_path, **more, clients=5, participation=0.7, rounds=3, beta=0.5))


def test_equal_to_the_reference_with_lost_updates(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    more = {"method": "scaffold", "drop_rate": 0.4, "clients": 5, "participation": 1.0, "beta": 0.5}
    plain, parallel = pair(tiny, tmp_path, **more)
    assert any(json.loads(line)["dropped"] for line in (plain / "rounds.jsonl").read_text().splitlines())
    assert_same_run(plain, parallel)


def test_more_processes_than_clients(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    one, many = (
        small_plan_of(tiny, tmp_path / str(n), workers=n, clients=2, participation=1.0, rounds=2) for n in (1, 9)
    )
    play(one)
    play(many)
    assert_same_run(folder_of(one), folder_of(many))


@pytest.mark.parametrize("settings", [{"clients": 1}, {"method": "central"}])
def test_one_client_needs_no_process(
    settings: dict[str, Any], tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "start_process", None)
    play(small_plan_of({**tiny, **settings}, tmp_path, workers=4, rounds=1))


def test_more_clients_than_wait_at_once(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stay in client order if only the first two remaining clients may be in training."""
    monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    monkeypatch.setattr(workers, "MAX_CLIENTS_AHEAD", 1)
    assert_same_run(*pair(tiny, tmp_path, clients=12, participation=1.0, rounds=2, beta=0.5))


# --- how many processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "asked", "selected", "expected"),
    [
        (1, 0, 5, (1, 1)),
        (2, 0, 5, (2, 1)),
        (8, 0, 5, (5, 1)),
        (64, 0, 5, (5, 12)),
        (8, 0, 1, (1, 8)),
        (1, 3, 5, (3, 1)),
        (8, 2, 5, (2, 4)),
        (8, 1, 5, (1, 8)),
        (4, 9, 2, (2, 2)),
    ],
)
def test_cores_are_shared_out(
    threads: int, asked: int, selected: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert backends.split_cores(asked, selected) == expected


def test_processes_start_on_their_own_for_a_long_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short run stays in its process, a long run starts processes, and the result is the same."""
    started = []

    def counted(*arguments: Any) -> Any:
        started.append(arguments)
        return InThisProcess.start(*arguments)

    monkeypatch.setattr(workers, "start_process", counted)
    monkeypatch.setattr(backends, "split_cores", lambda asked, selected: (2, 1))
    short = small_plan_of(tiny, tmp_path / "short", rounds=3)
    play(short)
    assert not started
    monkeypatch.setattr(workers, "MIN_PIXEL_VALUES", 1000.0)
    long = small_plan_of(tiny, tmp_path / "long", rounds=3)
    play(long)
    assert len(started) == 2
    assert_same_run(folder_of(short), folder_of(long))


# --- objects made in Python ------------------------------------------------------------------------------------------


def made_in_memory() -> fedbm.Dataset:
    rng = np.random.default_rng(0)
    digits = fedbm.load("digits", size=16)
    images = rng.integers(0, 256, digits.images.shape, dtype=np.uint8)
    return dataclasses.replace(digits, images=images, name="noise", checksum="noise")


def test_a_data_set_in_memory_with_a_custom_method_and_body(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = made_in_memory()
    runs = [
        fedbm.simulate(
            data,
            method=Odd(),
            body=TinyBody,
            clients=4,
            rounds=2,
            batch=32,
            device="cpu",
            threads=1,
            workers=n,
            out=tmp_path / str(n),
        )
        for n in (1, 2)
    ]
    assert_same_run(*(run.path for run in runs))
    assert "disturbs nobody" in capfd.readouterr().out


def test_the_store_is_mapped_and_what_was_changed_in_memory_is_not_read_from_it(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.arange(600, dtype=np.uint8).reshape(300, 2))
    spare = tmp_path / "spare.npy"
    stored = np.load(tmp_path / "images.npy", mmap_mode="c")
    assert workers.share_array(stored, spare) == tmp_path / "images.npy"
    assert not spare.exists()
    stored[299, 1] += 1
    raw = np.memmap(tmp_path / "raw", np.uint8, "w+", shape=(4, 2))
    (tmp_path / "zip").write_bytes(b"PK\x03\x04")  # pixels, which np.load() would take for a .npz file
    zipped = np.memmap(tmp_path / "zip", np.uint8, "c", shape=(2, 2))
    np.save(tmp_path / "bits.npy", np.eye(4, 2, dtype=bool))
    bits = np.load(tmp_path / "bits.npy", mmap_mode="c").view(np.uint8)
    for array in (stored, stored[10:], np.load(tmp_path / "images.npy", mmap_mode="c")[5:], raw, zipped, bits):
        assert workers.share_array(array, spare) == spare
        assert np.array_equal(np.load(spare), array)
        assert np.load(spare).dtype == np.uint8


@pytest.mark.parametrize("kind", ["lambda", "main"])
def test_objects_that_cannot_be_pickled_are_trained_in_this_process(
    kind: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    body = (lambda: TinyBody()) if kind == "lambda" else type("Here", (TinyBody,), {"__module__": "__main__"})
    if kind == "main":
        sys.modules["__main__"].Here = body  # type: ignore[attr-defined]
    settings = {key: value for key, value in tiny.items() if key not in ("data", "width", "method")}
    run = fedbm.simulate(tiny["data"], method="fedavg", body=body, workers=2, out=tmp_path, **settings)
    [note] = run.rounds[0]["notes"]
    assert note.startswith("clients are trained in this process")
    assert len(run.rounds) == 4


def test_objects_that_another_process_cannot_import(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "passing.py").write_text("from small import TinyBody as Base\nclass Body(Base):\n    pass\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        import passing  # type: ignore[import-not-found]
    settings = {key: value for key, value in tiny.items() if key not in ("data", "width", "method")}
    with pytest.raises(FedBMError, match="cannot start .ModuleNotFoundError: No module named 'passing'.; use workers"):
        fedbm.simulate(tiny["data"], method="fedavg", body=passing.Body, workers=2, out=tmp_path, **settings)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_mistake_in_a_method_shows_its_traceback(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    with pytest.raises(RuntimeError, match=r"(?s)in a client process:.*KeyError: 'body.nowhere'"):
        play(small_plan_of(tiny, tmp_path, own=Careless(), workers=2))


def test_a_sentence_crosses_as_it_is(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    with pytest.raises(FedBMError, match="BatchNorm cannot normalise one value: use a larger batch or size"):
        play(plan_of(tiny, tmp_path, workers=2, batch=1))


def test_an_update_that_is_not_finite_is_dropped_with_the_same_reason(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several tensors that are not finite the same one is named: names keep their order on the way."""
    monkeypatch.setattr(workers, "start_process", InThisProcess.start)
    left, right = pair(tiny, tmp_path, own=Poisoned(), rounds=1, participation=1.0)
    assert_same_run(left, right)
    assert '"dropped": [{"client": 1, "reason": "head.weight is not finite"}]' in (right / "rounds.jsonl").read_text()


@posix
def test_a_process_that_dies_stops_the_run_which_can_be_resumed(
    plan: Any,
    unbroken: Path,
    tiny_fedbm: dict[str, Any],
    tmp_path: Path,
) -> None:
    broken = small_plan_of(tiny_fedbm, tmp_path, keep_optimizer=True, workers=2)
    assert broken.id == plan.id
    rounds = simulation.run(broken)
    for event in rounds:
        if event.record is not None and event.round == 2:
            multiprocessing.active_children()[0].kill()
            break
    with pytest.raises(FedBMError, match=r"ended with status -9.*resume from the last checkpoint\.$"):
        list(rounds)
    assert not multiprocessing.active_children()
    assert play(plan)[0].round == 3
    assert_same_run(folder_of(plan), unbroken)


def test_stopped_and_resumed_with_other_numbers_of_processes(
    unbroken: Path, tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    stop_after(1, small_plan_of(tiny_fedbm, tmp_path, keep_optimizer=True, workers=1))
    several = small_plan_of(tiny_fedbm, tmp_path, keep_optimizer=True, workers=2)
    found = []

    def in_third_round(event: Event) -> bool:
        found[:] = multiprocessing.active_children()
        return event.round == 3 and event.phase == "train" and event.done == 1

    play(several, until=in_third_round)
    assert len(found) == 2
    assert not multiprocessing.active_children()
    play(small_plan_of(tiny_fedbm, tmp_path, keep_optimizer=True, workers=1))
    assert_same_run(folder_of(several), unbroken)


def gone(processes: list[int]) -> bool:
    """Whether all of them end within a few seconds."""
    for _ in range(200):
        if not any(Path(f"/proc/{number}").exists() for number in processes):
            return True
        time.sleep(0.05)
    return False


@posix
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here to see processes in")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_its_parent(
    number: int, tiny_fedbm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C, a closed terminal or a kill, which reach a whole group, no process and no shared file remains."""
    (tmp_path / "shared").mkdir()
    words = command({**tiny_fedbm, "rounds": 1000, "workers": 2}, tmp_path / "runs")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "shared"))
    process = start_command(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert any("round 2/" in line for line in process.stdout)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert len(found) == 2
    os.killpg(process.pid, number)
    _, err = process.communicate()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err == "fedbm: interrupted; run the same command again to continue\n"
    assert gone([int(word) for word in found])
    assert not list((tmp_path / "shared").glob("fedbm-*"))


def test_workers_are_for_a_cpu() -> None:
    device = torch.device("meta")
    labels = torch.zeros(1, dtype=torch.int64, device=device)
    setting: Any = LocalSetup(FedAvg(), None, None, None, None, labels, [], {}, None)  # type: ignore[arg-type]
    with pytest.raises(FedBMError, match="workers only apply to the CPU"):
        backends.make_backend(setting, fedbm.runs.run_config.EngineOptions(workers=2), np.zeros(1, np.uint8), print)


def test_the_command_line_has_it(tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command({**tiny, "workers": "two"}, tmp_path)) == 2
    assert 'workers must be a whole number, not "two"' in capsys.readouterr().err
    assert issubclass(workers.WorkerCohort, LocalCohort)
