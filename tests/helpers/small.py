"""Tasks small enough for tests: a few random images, a linear or tiny convolutional body, made-up concepts."""

from __future__ import annotations

import torch
from torch import nn

from fedbm.engine.local_training import Samples, plain_steps, train_client
from fedbm.engine.round_loop import select_clients
from fedbm.language.concept_distribution import ConceptDistribution
from fedbm.methods.base import Facts, Task
from fedbm.models.normalize import Normalise


class TinyBody(nn.Module):
    """conv–BatchNorm–ReLU–mean: a body with statistics, in a hundred parameters."""

    def __init__(self, channels: int = 1, features: int = 6) -> None:
        super().__init__()
        self.feature_dim = features
        self.conv = nn.Conv2d(channels, features, 3, stride=2)
        self.bn = nn.BatchNorm2d(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x))).mean(dim=(2, 3))


class SmallResNet(nn.Module):
    """Takes the place of ResNet18 where a run is described by its options alone: its stem, and one more convolution."""

    def __init__(self, channels: int, width: int, stem: str, norm: str) -> None:
        super().__init__()
        self.feature_dim = 8 * width
        self.conv1 = nn.Conv2d(channels, width, 3, 2, 1, bias=False)
        self.conv2 = nn.Conv2d(width, 8 * width, 3, 2, 1, bias=False)
        self.bn1, self.bn2 = (
            nn.BatchNorm2d(n) if norm == "batch" else nn.GroupNorm(2, n) for n in (width, self.feature_dim)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x))).mean(dim=(2, 3))


def concepts(classes: int = 3, prompts: int = 4, dim: int = 5) -> ConceptDistribution:
    rng = torch.Generator().manual_seed(11)
    centres = 3 * torch.randn(classes, 1, dim, generator=rng)
    names = [f"class {k}" for k in range(classes)]
    embeddings = centres + torch.randn(classes, prompts, dim, generator=rng)
    return ConceptDistribution.fit(names, names, embeddings, {"encoder": "made up"})


def task(classes: int = 3, seed: int = 0, make_body=TinyBody, size: int = 16, **more) -> Task:
    return Task(
        classes=tuple(f"class {k}" for k in range(classes)),
        shape=(1, size, size),
        mean=(0.5,),
        std=(0.25,),
        seed=seed,
        make_body=make_body,
        concepts=concepts(classes),
        **more,
    )


class Pixels(nn.Flatten):
    """A body without parameters: what follows is a linear model, whose steps can be worked by hand."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.feature_dim = features


def samples(vectors, labels, dtype=torch.float64, scale: float = 1.0) -> Samples:
    """Vectors of small whole numbers as images [n,1,D,1], read divided by *scale*."""
    images = torch.tensor(vectors, dtype=torch.uint8).unsqueeze(1).unsqueeze(-1)
    normalise = Normalise((0.0,), (1.0,)).to(dtype)
    normalise.std.fill_(scale / 255)  # to all digits of float64
    return Samples(images, torch.tensor(labels), torch.arange(len(labels)), normalise)


def linear_task(features: int, classes: int, seed: int = 0) -> Task:
    return Task(
        classes=tuple(map(str, range(classes))),
        shape=(1, 1, features),
        mean=(0.0,),
        std=(1 / 255,),
        seed=seed,
        make_body=lambda: Pixels(features),
        concepts=concepts(classes),
    )


def play(method, task, train, data, rounds=1, participation=1.0, model=None, observe=None):
    """Rounds of *method* over *data*, one Samples per client, without files: (server, client states, uploads)."""
    like = data[0].normalise.mean
    model = (model or method.model(task)).to(like.device, like.dtype)
    server, states, uploads = method.server_init(model), {}, []
    classes = len(task.classes)
    for round_ in range(1, rounds + 1):
        aggregator = method.aggregator(server, len(data))
        received = {
            name: value for piece in method.broadcast(server, round_).values() for name, value in piece.state.items()
        }
        uploads = []
        for client in select_clients(len(data), participation, task.seed, round_):
            own = data[client].labels[data[client].indices]
            facts = Facts(client, len(own), tuple(own.bincount(minlength=classes).tolist()))
            state = states.get(client)
            if state is None:
                state = {n: v.to(like.device, like.dtype) for n, v in method.client_init(task, facts).items()}
            upload, states[client] = train_client(
                method, model, task, train, round_, facts, data[client], received, state
            )
            aggregator.add(upload)
            uploads.append(upload)
        server, _ = method.server_step(aggregator.result(), model, task, round_, plain_steps)
        if observe is not None:
            observe(server, states)
    return server, states, uploads


def image_data(clients: int = 4, seed: int = 1, size: int = 16) -> list[Samples]:
    """Random pictures of three classes: 3 samples at client 0, 5 at client 1, and so on."""
    rng = torch.Generator().manual_seed(seed)
    data = []
    for client in range(clients):
        n = 3 + 2 * client
        images = torch.randint(0, 256, (n, size, size, 1), generator=rng, dtype=torch.uint8)
        labels = torch.randint(0, 3, (n,), generator=rng)
        data.append(Samples(images, labels, torch.arange(n), task().normalise()))
    return data
