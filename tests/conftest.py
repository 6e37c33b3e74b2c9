"""What every test shares: one thread, a cache of its own, and settings with which a whole run takes a moment."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CLASSES = ("cyst", "normal", "polyp")
MEMORY_BYTES = 4 << 30  # tests need less than a tenth of it

pytest.register_assert_rewrite("whole_runs", "calling")  # its comparisons say what differs


def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of tests in memory if there is plenty, where a file is replaced in a tenth of the time.

    Leave the process that only starts others without PyTorch: nothing here is imported before it is needed.
    """
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    from hypothesis import settings

    settings.register_profile("fedbm", deadline=None)  # a slow example on a busy machine is not a failure
    settings.load_profile("fedbm")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are cores: many tests wait for processes that they started."""
    return 1 + (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Exclude all imported modules from garbage collection: a full collection of them takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def writes_are_not_flushed() -> Iterator[None]:
    """Leave files in the cache of the operating system: a flush only matters if the power fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prepared data go here, for this process and those it starts: nothing is written to the user's home."""
    import torch

    folder = tmp_path_factory.mktemp("cache")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBM_HOME", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder


@pytest.fixture(scope="session", autouse=True)
def processes_start_fast() -> Iterator[None]:
    """Fork the processes of parallel runs from a server that has imported PyTorch once.

    A spawned process imports it again, which takes seconds. Scripts that the tests start in processes of their own
    still spawn.
    """
    multiprocessing.set_forkserver_preload(["fedbm.runs.scheduler", "fedbm.runs.runner"])
    real = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        return real("forkserver" if method == "spawn" else method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", get_context)
        yield


@pytest.fixture(scope="session")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three classes with 30 noisy pictures of 16×16 each."""
    import numpy as np
    from PIL import Image

    folder = tmp_path_factory.mktemp("data") / "scans"
    rng = np.random.default_rng(0)
    for label in CLASSES:
        (folder / label).mkdir(parents=True)
        shape = rng.integers(0, 160, (16, 16))
        for number in range(30):
            picture = shape + rng.integers(0, 96, (16, 16))
            Image.fromarray(picture.astype(np.uint8)).save(folder / label / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def tiny(scans: Path) -> dict[str, Any]:
    """Settings of a run that takes a fifth of a second, by flag; `tiny_fedbm` is the same for FedBM."""
    return {
        "data": str(scans),
        "method": "fedavg",
        "size": 16,
        "channels": 1,
        "width": 4,
        "clients": 4,
        "batch": 8,
        "rounds": 4,
        "checkpoint_every": 1,
        "device": "cpu",
        "threads": 1,
    }


@pytest.fixture(scope="session")
def tiny_fedbm(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Concepts in 8 dimensions and a generator that costs nothing, trained every other round."""
    import torch

    from fedbm.language.concept_distribution import ConceptDistribution

    file = tmp_path_factory.mktemp("concepts") / "concepts.safetensors"
    embeddings = torch.randn(len(CLASSES), 4, 8, generator=torch.Generator().manual_seed(0))
    ConceptDistribution.fit(CLASSES, CLASSES, embeddings, {"encoder": "made up"}).save(file)
    return {
        **tiny,
        "method": "fedbm",
        "concept_file": str(file),
        "pseudo_batch": 4,
        "generator_every": 2,
        "generator_steps": 3,
        "generator_batch": 8,
        "generator_width": 8,
    }
