"""Deployments in one process train a small body; those of tests/deployed train ResNet-18."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from small import SmallResNet

from fedbm.models import backbone


@pytest.fixture(scope="module", autouse=True)
def small_body() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbone, "ResNet18", SmallResNet)
        yield


@pytest.fixture(autouse=True)
def flowers_own_limits() -> Iterator[None]:
    """A server in this process changes how many bytes of a message Flower pulls, and how long it waits for them."""
    yield
    if grid := sys.modules.get("flwr.superlink.grid.http_grid"):
        vars(grid)["pull_objects"] = sys.modules["flwr.supercore.inflatable.inflatable_utils"].pull_objects
