"""Tasks small enough for tests: a few random images, a linear or tiny convolutional body, made-up concepts."""

from __future__ import annotations

import torch
from torch import nn

from fedbm.language.concepts import ConceptDistribution
from fedbm.methods.base import Task


class TinyBody(nn.Module):
    """conv–BatchNorm–ReLU–mean: a body with statistics, in a hundred parameters."""

    def __init__(self, channels: int = 1, features: int = 6) -> None:
        super().__init__()
        self.feature_dim = features
        self.conv = nn.Conv2d(channels, features, 3, stride=2)
        self.bn = nn.BatchNorm2d(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x))).mean(dim=(2, 3))


def concepts(classes: int = 3, prompts: int = 4, dim: int = 5) -> ConceptDistribution:
    rng = torch.Generator().manual_seed(11)
    centres = 3 * torch.randn(classes, 1, dim, generator=rng)
    names = [f"class {k}" for k in range(classes)]
    embeddings = centres + torch.randn(classes, prompts, dim, generator=rng)
    return ConceptDistribution.fit(names, names, embeddings, {"encoder": "made up"})


def task(classes: int = 3, clients: int = 4, seed: int = 0, make_body=TinyBody, size: int = 16, **more) -> Task:
    return Task(
        classes=tuple(f"class {k}" for k in range(classes)),
        shape=(1, size, size),
        mean=(0.5,),
        std=(0.25,),
        clients=clients,
        seed=seed,
        make_body=make_body,
        concepts=concepts(classes),
        **more,
    )
