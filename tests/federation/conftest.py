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
    """A server in this process changes how long Flower waits for the objects of a message."""
    from flwr.supercore.inflatable import inflatable_utils as utils

    functions = (utils.pull_objects, utils.pull_and_inflate_object_from_tree)
    before = [dict(function.__kwdefaults__ or {}) for function in functions]
    yield
    for function, defaults in zip(functions, before, strict=True):
        function.__kwdefaults__ = defaults


@pytest.fixture(autouse=True)
def no_kept_runs() -> Iterator[None]:
    """Every test starts with nodes that have just been started."""
    yield
    if "fedbm.federation.node.client_app" in sys.modules:
        sys.modules["fedbm.federation.node.client_app"].KEPT.clear()
