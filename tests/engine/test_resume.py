"""Resumed ≡ uninterrupted: however a run ends early, the same command ends it as if nothing had happened."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import nn
from whole_runs import after_round, assert_same_run, command, contents, folder_of, play, stop_after
from whole_runs import small_plan_of as plan_of

from fedbm import FedBMError
from fedbm.cli import main
from fedbm.engine.checkpoint import load_tensors
from fedbm.methods import FedAvg, FedBM
from fedbm.methods.base import Facts, OwnData, State, load_state, size_of
from fedbm.runs import runner as simulation
from fedbm.runs.plan import Plan


@dataclass(frozen=True)
class OwnNorm(FedAvg):
    """FedBN: every client keeps its BatchNorm layers to itself; the rest is averaged."""

    name: ClassVar[str] = "ownnorm"

    def start_client(self, model: nn.Module, received: State, client: State, facts: Facts) -> State:
        load_state(model, {**received, **client})
        return {}

    def finish_client(self, model: nn.Module, data: OwnData, context: State, facts: Facts) -> tuple[State, State]:
        norms = {name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
        upload, own = super().finish_client(model, data, context, facts)
        own = {name: value for name, value in upload.items() if name.rpartition(".")[0] in norms}
        return {name: value for name, value in upload.items() if name not in own}, own

    def global_states(self, server: State, clients: Mapping[int, State]) -> Iterator[State]:
        yield from ({**server, **clients[client]} for client in clients)

    def personal_state(self, server: State, client: State) -> State:
        return {**server, **client}


CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedbm": {"method": "fedbm"},
    "client state": {"own": OwnNorm()},
    "kept momentum": {"method": "fedavg", "keep_optimizer": True},
    "kept Adam": {"method": "fedavg", "keep_optimizer": True, "optimizer": "adam", "lr": 0.001},
    "lost updates": {"own": OwnNorm(), "drop_rate": 0.4},
    "frozen BatchNorm": {"method": "fedavg", "freeze_batchnorm_after": 2},
    "rare checkpoints": {"method": "fedbm", "checkpoint_every": 2, "evaluate_every": 2, "keep_optimizer": True},
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_between_and_within_rounds(
    case: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    more = CASES[case]
    settings = tiny_fedbm if more.get("method") == "fedbm" else tiny
    whole, broken = (plan_of(settings, tmp_path / out, **more) for out in ("whole", "broken"))
    assert whole.id == broken.id
    play(whole)
    play(broken, until=lambda event: event.phase == "train")  # before anything was learnt
    play(broken, until=after_round(1))
    play(broken, until=lambda event: event.round == 2 and event.phase == "train" and event.done == 1)
    play(broken, until=lambda event: event.round == 4 and event.phase == "aggregate")
    rest = play(broken)
    assert rest[0].round == (3 if case == "rare checkpoints" else 4)
    assert_same_run(folder_of(whole), folder_of(broken))
    assert any(folder_of(broken).glob("clients/*.safetensors")) == ("own" in more or "keep_optimizer" in more)


@pytest.mark.parametrize("held", [2, 4])  # clients' states that there is room for
@pytest.mark.parametrize("method", ["scaffold", "fedproto"])
def test_states_held_in_memory_change_nothing(
    method: str, held: int, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: what is held is written with a checkpoint, so a run that ends between two resumes from the first."""
    plans = [
        plan_of(tiny, tmp_path / out, method=method, keep_optimizer=True, checkpoint_every=2, workers=1)
        for out in ("whole", "broken")
    ]
    play(plans[0])
    sizes = [size_of(load_tensors(path)[0]) for path in folder_of(plans[0]).glob("clients/*.safetensors")]
    assert len(sizes) == 4
    monkeypatch.setattr(simulation, "state_cache_bytes", lambda device: held * max(sizes))
    play(plans[1], until=after_round(3))
    play(plans[1], until=lambda event: event.round == 4 and event.phase == "aggregate")
    play(plans[1])
    assert_same_run(*(folder_of(plan) for plan in plans))


def test_a_finished_run_is_not_changed(plan: Plan) -> None:
    play(plan)
    before = contents(folder_of(plan))
    assert play(plan) == []
    assert contents(folder_of(plan)) == before


def test_half_a_line_and_leftovers(plan: Plan, unbroken: Path) -> None:
    folder = stop_after(2, plan)
    with (folder / "rounds.jsonl").open("ab") as stream:
        stream.write(b'{"round": 3, "why": "\xc3')
    for place in (folder, folder / "clients"):
        (place / ".0-3.safetensors.4242.part").write_bytes(b"half")
    play(plan)
    assert_same_run(folder, unbroken)


def test_a_damaged_checkpoint_is_refused_and_nothing_is_lost(plan: Plan, unbroken: Path) -> None:
    folder = stop_after(2, plan)
    checkpoint = folder / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    before = contents(folder)
    with pytest.raises(FedBMError) as caught:
        play(plan)
    said = str(caught.value)
    assert said.startswith(f"cannot resume from {checkpoint}: ")
    assert said.endswith("; put the file back, or remove it to start this run over")
    assert "\n" not in said
    assert contents(folder) == before
    checkpoint.write_bytes(whole)
    play(plan)
    assert_same_run(folder, unbroken)


@pytest.mark.parametrize("damage", ["removed", "cut short"])
@pytest.mark.parametrize("pattern", ["best-*.safetensors", "clients/*.safetensors"])
def test_a_lost_or_damaged_file_of_a_checkpoint_is_reported_before_a_round(
    tiny: dict[str, Any], tmp_path: Path, pattern: str, damage: str
) -> None:
    plan = plan_of({**tiny, **CASES["kept momentum"], "participation": 1.0}, tmp_path)
    folder = stop_after(2, plan)
    for path in folder.glob(pattern):
        whole = path.read_bytes()
        path.unlink() if damage == "removed" else path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FedBMError) as caught:
        play(plan)
    assert str(caught.value).startswith(f"cannot read {folder}/{pattern.partition('*')[0]}")
    assert str(caught.value).endswith(f"; put the file back, or remove {folder} to start this run over")
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 2


def test_without_its_checkpoint_a_run_starts_over(plan: Plan, unbroken: Path) -> None:
    folder = stop_after(2, plan)
    (folder / "checkpoint.safetensors").unlink()
    assert play(plan)[0].round == 1
    assert_same_run(folder, unbroken)


def test_a_lost_line_is_noticed(plan: Plan) -> None:
    folder = stop_after(3, plan)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(FedBMError, match=r"must contain rounds 1 to 3, because the checkpoint"):
        play(plan)


@pytest.mark.parametrize("lost", ["summary.json", "model.safetensors"])
def test_only_finishing_is_left_to_do(plan: Plan, unbroken: Path, lost: str) -> None:
    """Killed while the results were written, before or after the best state became the model; or a summary removed."""
    folder = stop_after(4, plan)
    if lost == "summary.json":
        play(plan)
        (folder / lost).unlink()
    for stale in ("best-9.safetensors", "clients/0-9.safetensors"):  # killed before the last checkpoint's tidying
        (folder / stale).write_text("stale")
    assert play(plan) == []
    assert_same_run(folder, unbroken)


@pytest.mark.parametrize("where", ["checkpoint", "line"])
def test_a_full_disk(plan: Plan, unbroken: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stop_after(2, plan)
    checkpoint = (folder / "checkpoint.safetensors").read_bytes()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write, opening = Path.write_bytes, Path.open

    def write_bytes(path: Path, data: bytes) -> int:
        if "checkpoint" in path.name:
            write(path, data[:100])
            raise full
        return write(path, data)

    def open_(path: Path, mode: str = "r", **more: Any) -> Any:
        if mode == "a":
            raise full
        return opening(path, mode, **more)

    with monkeypatch.context() as patch:
        if where == "checkpoint":
            patch.setattr(Path, "write_bytes", write_bytes)
        else:
            patch.setattr(Path, "open", open_)
        with pytest.raises(FedBMError) as caught:
            play(plan)
    name = "checkpoint.safetensors" if where == "checkpoint" else "rounds.jsonl"
    assert str(caught.value) == (
        f"cannot write {folder / name}: No space left on device; free some space or choose another folder"
    )
    assert (folder / "checkpoint.safetensors").read_bytes() == checkpoint
    assert not list(folder.rglob(".*.part"))
    play(plan)
    assert_same_run(folder, unbroken)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_too_little_memory(plan: Plan, unbroken: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stop_after(2, plan)

    def loss(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(FedBM, "loss", loss)
        with pytest.raises(FedBMError, match="^the memory of cpu is too small; try a smaller batch, width or size, or"):
            play(plan)
    play(plan)
    assert_same_run(folder, unbroken)


def test_a_folder_that_cannot_be_written(
    tiny: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file, no folder")
    assert main(command(tiny, tmp_path / "out")) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fedbm: cannot write {tmp_path / 'out'}")
    assert err.endswith("; free some space or choose another folder\n")
    assert main(command(tiny, tmp_path / ("x" * 300))) == 2
    assert "File name too long; free some space or choose another folder" in capsys.readouterr().err


def test_seconds_add_up_over_interruptions(plan: Plan) -> None:
    folder = stop_after(2, plan)
    play(plan)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seconds"] == pytest.approx(sum(line["seconds"]["total"] for line in lines))
    assert summary["bytes"]["sent"] == sum(line["bytes"]["sent"] for line in lines)
