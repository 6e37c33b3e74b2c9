"""Run several runs on a Ray cluster: one worker per GPU of all nodes, or per core if the cluster has no GPU.

The workers replace the processes of `scheduler.py`, which decides what runs where. Runs are written to the same
folders, so all nodes must see the folder in which the command started and the folder of runs.
"""

from __future__ import annotations

import importlib
import os
import queue
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.runs.failure import Failure
from fedbm.runs.run_config import Config
from fedbm.runs.scheduler import Job, Place, Pool, Worker, advance_runs, gpu_shares
from fedbm.utils.io import make_folder
from fedbm.version import __version__

STARTED = -1  # the number in a worker's first message, which belongs to no run


class RayWorker:
    """A worker on the cluster. It receives runs only after it has started, because its GPU may still be in use."""

    def __init__(self, ray: Any, actor: Any, share: int, changes: dict[str, Any]) -> None:
        self.ray, self.actor, self.share, self.changes = ray, actor, share, changes
        self.runs_per_gpu = 0
        self.runs: set[int] = set()
        self.news = actor.work.remote(os.getcwd())
        self.error = ""

    def send(self, number: int, job: Job | None) -> None:
        self.actor.put.remote((number, job))

    def receive(self) -> tuple[int, Event | Failure | None]:
        try:
            number, news = self.ray.get(next(self.news))
        except (self.ray.exceptions.RayError, StopIteration) as error:
            self.error = " ".join(str(error).split())
            if not self.runs_per_gpu:
                raise FedBMError(f"a worker of the Ray cluster did not start: {self.error}") from error
            raise EOFError from error
        if number == STARTED:
            self.runs_per_gpu = self.share
        return number, news

    def why_ended(self) -> str:
        return f"its worker on the Ray cluster ended: {self.error}"

    def stop(self) -> None:
        self.ray.kill(self.actor)


class Actor:
    """The worker's code on its node. One thread advances the runs, and another receives messages."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[tuple[int, Job | None]] = queue.SimpleQueue()

    def put(self, message: tuple[int, Job | None]) -> None:
        self.messages.put(message)

    def work(self, folder: str) -> Generator[tuple[int, Event | Failure | None], None, None]:
        os.chdir(folder)
        yield STARTED, None
        yield from advance_runs(self._receive)

    def _receive(self, is_busy: bool) -> Iterator[tuple[int, Job | None]]:
        if not is_busy:
            yield self.messages.get()
        while not self.messages.empty():
            yield self.messages.get()


def connect(config: Config) -> Pool:
    """Connect to the cluster of $RAY_ADDRESS, or to the one of this machine, and return its places.

    Raise FedBMError if there is no cluster, if it does not have the device, or if a node does not see the folders.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise FedBMError('--on ray needs Ray: pip install "fedbm[ray]" on every node') from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", logging_level="WARNING")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise FedBMError(
                "no Ray cluster was found. Start one with 'ray start --head', or set RAY_ADDRESS to its address."
            ) from error
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places, needs = _find_places(config, nodes)
    resource = "GPU" if "num_gpus" in needs else "CPU"
    _check_folders(ray, [node for node in nodes if node["Resources"].get(resource)], config)
    actor = ray.remote(Actor).options(max_concurrency=2, **needs)

    def start(share: int, changes: dict[str, Any]) -> Worker:
        return RayWorker(ray, actor.remote(), share, changes)

    def wait(workers: Sequence[RayWorker], seconds: float | None) -> list[Worker]:
        ready, _ = ray.wait([worker.news for worker in workers], timeout=seconds)
        return [worker for worker in workers if worker.news in ready]

    return Pool(places, start, wait)


def _find_places(config: Config, nodes: Sequence[dict[str, Any]]) -> tuple[list[Place], dict[str, float]]:
    """Return a place for each worker, and what one worker needs of a node."""
    device = config.engine.device
    if ":" in device:
        raise FedBMError(f"device is {device}, but Ray chooses the GPU of each worker. Use --device cuda.")
    gpus = sum(int(node["Resources"].get("GPU", 0)) for node in nodes)
    if device == "cuda" and not gpus:
        raise FedBMError("device is cuda, but the Ray cluster has no GPU; use --device cpu")
    if device == "cpu" or not gpus:
        cores = sum(int(node["Resources"].get("CPU", 0)) for node in nodes)
        if not cores:
            raise FedBMError("the Ray cluster has no cores for workers. Start a node with 'ray start --address …'.")
        return [(1, {"device": "cpu", "threads": 1, "workers": 1})] * cores, {"num_cpus": 1}
    shares = gpu_shares(config)
    return [(share, {"device": "cuda:0"}) for share in shares] * gpus, {"num_cpus": 1, "num_gpus": 1 / len(shares)}


def _check_folders(ray: Any, nodes: Sequence[dict[str, Any]], config: Config) -> None:
    """Raise FedBMError if a node does not see the folders of this command, or has another version of fedbm."""
    out = Path(config.engine.out).expanduser()
    make_folder(out)
    marker = out / f".shared-{os.urandom(8).hex()}"
    marker.touch()
    look = ray.remote(_look)
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    found = {}
    try:
        for node in nodes:
            there = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked = look.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            found[node["NodeManagerAddress"]] = asked.remote(os.getcwd(), str(marker))
        for address, answer in found.items():
            try:
                folder, version = ray.get(answer)
            except ray.exceptions.RayError as error:
                raise FedBMError(f"node {address} of the Ray cluster cannot run fedbm: {error}") from error
            if folder:
                raise FedBMError(f"node {address} of the Ray cluster does not see {folder}. Use a shared folder.")
            if version != __version__:
                raise FedBMError(f"node {address} of the Ray cluster has fedbm {version}, this one has {__version__}.")
    finally:
        marker.unlink()


def _look(folder: str, marker: str) -> tuple[str, str]:
    """Return the first folder that this node does not see ("" if it sees all), and its version of fedbm."""
    if not os.path.isdir(folder):
        return folder, __version__
    path = Path(folder, marker)  # a relative --out is relative to the folder of the command
    return "" if path.exists() else str(path.parent), __version__
