"""The benchmark's command runs where there is no GPU, on images made up for it, and says in JSON what it printed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("engine")


def test_every_section(engine: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--device", "cpu", "--images", "80", "--size", "16", "--steps", "2", "--json"]
    assert engine.main([*words, str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["sections"]) == ["step", "round", "clients", "size", "generated"]
    assert found["environment"]["torch"] == torch.__version__
    assert found["environment"]["command"].startswith("python benchmarks/engine.py --quick ")
    for name, rows in found["sections"].items():
        assert f"## {engine.SECTIONS[name].title}\n" in printed
        assert all(row["seconds"] > 0 for row in rows)
    steps, rounds = found["sections"]["step"], found["sections"]["round"]
    for rows in (steps, rounds):
        assert [(row["method"], row["speed_up"]) for row in rows if "JPEG" in row["engine"]] == [
            ("fedavg", 1.0),
            ("fedbm", 1.0),
        ]
    for row in steps:
        assert row["share_of_bound"] == pytest.approx(row["bound_seconds"] / row["seconds"])
        assert row["images_per_second"] == pytest.approx((8 if row["method"] == "fedavg" else 12) / row["seconds"])
    # the same rounds for every engine: the same clients, so the same steps
    assert len({row["steps"] for row in rounds}) == 1


def test_operations_of_a_step(engine: ModuleType, tmp_path: Path) -> None:
    """A step on 2B images is twice a step on B: nothing but the images' work is counted."""
    measure, workload = (importlib.import_module(name) for name in ("measure", "workload"))
    device = torch.device("cpu")
    work = workload.load(None, 16, 80, tmp_path, device)
    counts = [
        measure.flops_of_step(measure.Bench(work, device, {"batch": batch, "width": 4}), "fedavg") for batch in (4, 8)
    ]
    assert counts[1] == 2 * counts[0] > 0


def test_the_baseline_sees_the_prepared_images(engine: ModuleType, tmp_path: Path) -> None:
    workload = importlib.import_module("workload")
    work = workload.load(None, 16, 80, tmp_path, torch.device("cpu"))
    chosen = torch.tensor([3, 0, 79])
    assert torch.equal(work.jpegs[chosen], torch.from_numpy(work.dataset.images[chosen.numpy()]))


def test_images_in_host_memory(engine: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module("host_data").main(["--quick", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {what} | host | " in printed for what in ("fedavg, reference", "fedbm, reference", "evaluation"))


def test_mistakes(engine: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--data", str(tmp_path / "none.npz"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("benchmark: ")
    assert engine.main(["--compile", "--device", "cpu"]) == 2
    with pytest.raises(SystemExit, match="2"):
        engine.main(["--sections", "steps"])
    assert "there is no steps: choose from step, round" in capsys.readouterr().err


def test_a_profile_tells_waits_among_launches_from_others(
    engine: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four waits two begin between the first and the last launch; kernels are what the device did."""
    profile_round = importlib.import_module("profile_round")

    def event(name: str, start: int, where: DeviceType = DeviceType.CPU) -> SimpleNamespace:
        facts = {"name": name, "start_ns": start, "duration_ns": 10**6, "device_type": where}
        return SimpleNamespace(**{key: lambda value=value: value for key, value in facts.items()})

    launches = [event("cudaGraphLaunch", start) for start in (20, 40, 60)]
    waits = [event("cudaStreamSynchronize", start) for start in (10, 30, 50, 70)]
    kernels = [event("sm90_xmma_fprop", 0, DeviceType.CUDA), event("triton_poi", 2 * 10**6, DeviceType.CUDA)]
    record = {"round": 12, "clients": [{"n": 9}], "seconds": {"train": 0.5}}
    profile_round.report([*launches, *waits, *kernels], record, batch=8)
    printed = capsys.readouterr().out
    assert "round 12: 2 local steps of 1 clients, 3 ms" in printed
    assert "the device is busy 67 % of the round" in printed
    assert "| cudaStreamSynchronize | 4 | 4.0 |\n\n2 of these waits began while 3 graphs were launched" in printed
