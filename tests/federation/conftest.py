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
def flowers_own_waits() -> Iterator[None]:
    """A server in this process changes how long Flower waits for the objects of a message, and how many it pulls."""
    yield
    if (utils := sys.modules.get("flwr.supercore.inflatable.inflatable_utils")) is None:
        return
    for function in (utils.pull_objects, utils.pull_and_inflate_object_from_tree):
        function.__kwdefaults__.update(initial_backoff=utils.PULL_INITIAL_BACKOFF, max_time=utils.PULL_MAX_TIME)
    if grid := sys.modules.get("flwr.superlink.grid.http_grid"):
        vars(grid)["pull_objects"] = utils.pull_objects
