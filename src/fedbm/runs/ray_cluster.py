"""Run several runs on a Ray cluster, which decides what runs where.

A run takes a share of a GPU, or a core if the cluster has no GPU. Runs are written to the same folders, so all nodes
must see the folder in which the command started and the folder of runs.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from fedbm.engine.round_loop import Event
from fedbm.errors import FedBMError
from fedbm.runs.failure import Failure
from fedbm.runs.run_config import Config
from fedbm.runs.scheduler import Job, advance_run, seconds_until
from fedbm.utils.io import make_folder
from fedbm.version import __version__


def run_on_cluster(
    configs: Sequence[Config], ids: Sequence[str] | None, deadline: float | None
) -> Generator[tuple[int, Event | Failure], None, None]:
    """Run all configurations on the cluster of $RAY_ADDRESS or of this machine; see run_all().

    Raise FedBMError if there is no cluster, or if it has no cores or does not have the device.
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
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU") for node in nodes):  # Ray would wait for such a node
        raise FedBMError("the Ray cluster has no cores for runs. Start a node with 'ray start --address …'.")
    changes, needs = find_needs(configs[0], any(node.get("GPU") and node.get("CPU") for node in nodes))
    task = ray.remote(compute).options(max_retries=0, **needs)
    out = Path(configs[0].engine.out).expanduser()
    make_folder(out)
    marker = out / f".shared-{os.urandom(8).hex()}"
    marker.touch()
    streams: dict[Any, int] = {}
    try:
        for number, config in enumerate(configs):
            config = config.with_values("engine", **changes)
            job = Job(pickle.dumps(config), ids[number] if ids else None, deadline)
            streams[task.remote(os.getcwd(), str(marker), __version__, job)] = number
        while streams:
            seconds = seconds_until(deadline)
            for stream in ray.wait(list(streams), timeout=seconds)[0]:
                try:
                    yield streams[stream], ray.get(next(stream))
                except StopIteration:
                    del streams[stream]
                except ray.exceptions.RayError as error:
                    yield streams.pop(stream), Failure(f"its worker on the Ray cluster ended: {error}")
            if seconds == 0:
                break
    finally:
        for stream in streams:
            ray.cancel(stream, force=True)
        marker.unlink()


def find_needs(config: Config, has_gpu: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the engine options of runs on the cluster, and what one run needs of a node."""
    device = config.engine.device
    if ":" in device:
        raise FedBMError(f"device is {device}, but Ray chooses the GPU of each run. Use --device cuda.")
    if device == "cuda" and not has_gpu:
        raise FedBMError("device is cuda, but the Ray cluster has no GPU; use --device cpu")
    if device == "cpu" or not has_gpu:
        return {"device": "cpu", "threads": 1, "workers": 1}, {"num_cpus": 1}
    return {"device": "cuda:0"}, {"num_cpus": 1, "num_gpus": 1 / config.engine.runs_per_gpu}


def compute(folder: str, marker: str, version: str, job: Job) -> Generator[Event | Failure, None, None]:
    """Compute a run on a node, in the *folder* of the command. *marker* is a file in its folder of runs."""
    path, node = Path(folder, marker), os.uname().nodename
    try:
        if not path.exists():
            raise FedBMError(f"node {node} does not see {path.parent}. Use a shared folder.")
        if version != __version__:
            raise FedBMError(f"node {node} has fedbm {__version__}, but the command has {version}.")
        os.chdir(folder)
        yield from (event for event in advance_run(job) if event is not None)
    except Exception as error:
        yield Failure.of(error)
