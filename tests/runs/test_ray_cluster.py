"""Runs on a Ray cluster: the folders and results of one machine, and one sentence if a cluster cannot be used."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from whole_runs import assert_same_run, plan_of

from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.runs.failure import Failure
from fedbm.runs.ray_cluster import compute, find_needs
from fedbm.runs.run_config import make_config, to_sections
from fedbm.runs.runner import run, run_path
from fedbm.runs.scheduler import Job, run_all
from fedbm.version import __version__


def config_of(settings: dict[str, Any], out: Path, **changes: Any) -> Any:
    return make_config(to_sections({**settings, "on": "ray", **changes, "out": str(out)}))


class FakeRay(SimpleNamespace):
    """A cluster without a GPU."""

    def __init__(self, is_initialized: bool = True, cores: float = 2.0) -> None:
        super().__init__(is_initialized=lambda: is_initialized, cores=cores)

    def init(self, **options: Any) -> None:
        raise ConnectionError("there is no cluster")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": self.cores}}]


def test_needs(tiny: dict[str, Any], tmp_path: Path) -> None:
    """A run takes a share of a GPU, though this machine has none; without GPUs, a core."""
    tiny = {key: value for key, value in tiny.items() if key != "device"}
    shared = config_of(tiny, tmp_path, runs_per_gpu=4)
    assert find_needs(shared, True) == ({"device": "cuda:0"}, {"num_cpus": 1, "num_gpus": 0.25})
    core = {"device": "cpu", "threads": 1, "workers": 1}, {"num_cpus": 1}
    assert find_needs(shared, False) == find_needs(config_of(tiny, tmp_path, device="cpu"), True) == core


@pytest.mark.parametrize(
    ("ray", "changes", "sentence"),
    [
        (None, {}, '--on ray needs Ray: pip install "fedbm[ray]" on every node'),
        (FakeRay(is_initialized=False), {}, "no Ray cluster was found. Start one with 'ray start --head', or set"),
        (FakeRay(cores=0.0), {}, "the Ray cluster has no cores for runs"),
        (FakeRay(), {"device": "cuda:1"}, "device is cuda:1, but Ray chooses the GPU of each run"),
        (FakeRay(), {"device": "cuda"}, "device is cuda, but the Ray cluster has no GPU"),
    ],
)
def test_a_cluster_that_cannot_be_used(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray: Any, changes: Any, sentence: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(FedBMError, match=sentence.replace("[", r"\[")):
        list(run_all([config_of(tiny, tmp_path, **changes)]))


def test_a_node_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "marker").touch()
    [failure] = compute(str(tmp_path), "runs/marker", __version__, Job(b"", None, None))
    assert f"does not see {tmp_path}/runs. Use a shared folder." in str(failure)
    [failure] = compute(str(tmp_path), "marker", "0.0.1", Job(b"", None, None))
    assert f"has fedbm {__version__}, but the command has 0.0.1" in str(failure)


def test_a_run_that_must_stay_in_this_process_refuses(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="on = ray needs several runs"):
        next(run(plan_of(tiny, tmp_path, on="ray")))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: make ray")
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "300000")  # a busy machine starts Ray slowly
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_on_a_cluster(ray: Any, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run fails with a sentence; another is stopped and resumed, and ends as on one machine."""
    out = tmp_path / "ray"
    slow = {**tiny, "rounds": 25, "checkpoint_every": 1000}
    configs = [config_of(slow, out, seed=0), config_of(tiny, out, lr=1e30, width=64, on_nonfinite="stop")]
    ids = [plan_of(slow, out, seed=0).id, plan_of(tiny, out, lr=1e30, width=64, on_nonfinite="stop").id]
    failed = {n: news.reason for n, news in run_all(configs[1:], ids=ids[1:]) if isinstance(news, Failure)}
    assert list(failed) == [0]
    assert "is unusable" in failed[0]
    assert list(run_all(configs[:1], ids=ids[:1], deadline=time.time())) == [], "there was no time"

    events = run_all(configs)
    assert any(isinstance(event, Event) and event.round == 2 for _, event in events)
    events.close()
    rounds = [event.round for _, event in run_all(configs[:1]) if isinstance(event, Event) and event.record is not None]
    assert rounds[-1] == 25
    alone = config_of(slow, tmp_path / "alone", seed=0, on="processes")
    assert all(isinstance(event, Event) for _, event in run_all([alone]))
    assert_same_run(out / ids[0], run_path(plan_of(slow, tmp_path / "alone", seed=0)))
    assert list(out.glob(".shared*")) == []
