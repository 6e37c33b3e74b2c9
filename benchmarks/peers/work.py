"""The work that every simulator does: one partition, the same clients in each round, the same model and step.

A client's samples are filled up to whole batches, as FedBM does, so that all simulators train equally many images.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from fedbm.engine.device import find_device
from fedbm.engine.round_loop import select_clients
from fedbm.models.resnet import ResNet18
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.run_config import make_config, to_sections

EVALUATION_BATCH = 512
VARIABLE = "FEDBM_PEERS"  # the settings, for the processes that a simulator starts


@dataclass(frozen=True)
class Settings:
    """What the command sets."""

    data: str
    folder: str
    device: str = "auto"
    size: int = 128
    width: int = 64
    rounds: int = 6
    clients: int = 10
    beta: float = 0.1
    batch: int = 8
    lr: float = 0.01
    momentum: float = 0.9
    precision: str = "tf32"


@dataclass
class Counts:
    """What a simulator did in one round. A body's forward pass on a batch is a step, or a part of an evaluation."""

    clients: int = 0
    steps: int = 0
    trained: int = 0
    evaluated: int = 0


@dataclass
class Measured:
    """Counts and seconds of the rounds after the warm-up; *training* is 0 if the simulator does not report it."""

    name: str
    counts: list[Counts] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)


class Work:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = find_device(settings.device)
        self.plan = plan_of(settings)
        dataset = self.plan.dataset
        self.images = torch.from_numpy(dataset.images).to(self.device)
        self.labels = torch.from_numpy(dataset.labels).to(self.device)
        self.scored = torch.cat([torch.from_numpy(dataset.indices(name)) for name in ("val", "test")]).to(self.device)
        self.clients = [
            fill(torch.from_numpy(own), settings.batch).to(self.device) for own in self.plan.partition.clients
        ]
        train = self.plan.config.train
        rounds = range(1, settings.rounds + 1)
        self.selected = [select_clients(settings.clients, train.participation, train.seed, r) for r in rounds]

    def model(self) -> nn.Module:
        return self.plan.config.method.model(self.plan.task).to(self.device)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised images and their labels."""
        return self.normalise.pixels(self.images[indices]), self.labels[indices]

    @functools.cached_property
    def normalise(self) -> nn.Module:
        return self.plan.task.normalise().to(self.device)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Return the accuracy on validation and test images."""
        model.eval()
        right = 0
        for indices in self.scored.split(EVALUATION_BATCH):
            images, labels = self.batch(indices)
            right += int((model(images).argmax(1) == labels).sum())
        return right / len(self.scored)


def plan_of(settings: Settings, **more: object) -> Plan:
    """Return the plan of a FedAvg run; half of the clients take part in each round."""
    flags = {key: value for key, value in asdict(settings).items() if key not in ("folder", "data")}
    flags |= {"method": "fedavg", "data": settings.data, "partition": "dirichlet", "participation": 0.5, "epochs": 1}
    flags |= {
        "weight_decay": 0.0,
        "cache": str(Path(settings.folder, "cache")),
        "out": tempfile.mkdtemp(dir=settings.folder),
    }
    return make_plan(make_config(to_sections({**flags, "seed": 0, "checkpoint_every": 10_000, **more})))


def fill(indices: Tensor, batch: int) -> Tensor:
    """Repeat the first samples until the last batch is full."""
    return indices[torch.arange(-(-len(indices) // batch) * batch) % len(indices)]


def share_settings(settings: Settings) -> None:
    os.environ[VARIABLE] = json.dumps(asdict(settings))


@functools.cache
def shared_work() -> Work:
    """Return the work of the command that started this process."""
    return Work(Settings(**json.loads(os.environ[VARIABLE])))


@contextmanager
def counting(counts: Counts) -> Iterator[None]:
    """Add every batch that passes through the model's body to *counts*."""

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(module, ResNet18):
            counts.steps += module.training
            counts.trained += len(inputs[0]) * module.training
            counts.evaluated += len(inputs[0]) * (not module.training)

    handle = register_module_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()
