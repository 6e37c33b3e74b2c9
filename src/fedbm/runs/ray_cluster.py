"""Run several runs on a Ray cluster: one worker per GPU of all nodes, or per core if the cluster has no GPU.

The workers replace the processes of `scheduler.py`, which decides what runs where. Runs are written to the same
folders, so all nodes must see the folder in which the command started and the folder of runs.
"""

from __future__ import annotations

import atexit
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

    def __init__(self, ray: Any, actor: Any, place: Place, marker: Path) -> None:
        self.ray, self.actor, self.place = ray, actor, place
        self.capacity = 0
        self.runs: set[int] = set()
        self.news = actor.work.remote(os.getcwd(), str(marker), __version__)
        self.error = ""

    def send(self, number: int, job: Job) -> None:
        self.actor.put.remote((number, job))

    def receive(self) -> tuple[int, Event | Failure | None]:
        try:
            number, news = self.ray.get(next(self.news))
        except (self.ray.exceptions.RayError, StopIteration) as error:
            self.error = " ".join(str(error).split())
            if not self.capacity:
                raise FedBMError(f"a worker of the Ray cluster did not start: {self.error}") from error
            raise EOFError from error
        if number == STARTED:
            self.capacity = self.place.capacity
        return number, news

    def why_ended(self) -> str:
        return f"its worker on the Ray cluster ended: {self.error}"

    def stop(self) -> None:
        self.ray.kill(self.actor)


class Actor:
    """The worker's code on its node. One thread advances the runs, and another receives messages."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()

    def put(self, message: tuple[int, Job]) -> None:
        self.messages.put(message)

    def work(self, folder: str, marker: str, version: str) -> Generator[tuple[int, Event | Failure | None], None, None]:
        """Advance runs in the *folder* of the command. *marker* is a file in its folder of runs."""
        path, node = Path(folder, marker), os.uname().nodename
        if not path.exists():
            raise FedBMError(f"node {node} does not see {path.parent}. Use a shared folder.")
        if version != __version__:
            raise FedBMError(f"node {node} has fedbm {__version__}, but the command has {version}.")
        os.chdir(folder)
        yield STARTED, None
        yield from advance_runs(self._receive)

    def _receive(self, is_busy: bool) -> Iterator[tuple[int, Job]]:
        if not is_busy:
            yield self.messages.get()
        while not self.messages.empty():
            yield self.messages.get()


def connect(config: Config) -> Pool:
    """Connect to the cluster of $RAY_ADDRESS, or to the one of this machine, and return its places.

    Raise FedBMError if there is no cluster, or if it does not have the device.
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
    places, needs = _find_places(config, [node for node in ray.nodes() if node["Alive"]])
    out = Path(config.engine.out).expanduser()
    make_folder(out)
    marker = out / f".shared-{os.urandom(8).hex()}"
    marker.touch()
    atexit.register(marker.unlink, missing_ok=True)
    actor = ray.remote(Actor).options(max_concurrency=2, **needs)

    def start(place: Place) -> Worker:
        return RayWorker(ray, actor.remote(), place, marker)

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
        return [Place(1, {"device": "cpu", "threads": 1, "workers": 1})] * cores, {"num_cpus": 1}
    shares = gpu_shares(config)
    return [Place(share, {"device": "cuda:0"}) for share in shares] * gpus, {"num_cpus": 1, "num_gpus": 1 / len(shares)}
