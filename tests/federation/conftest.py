"""Deployments in one process train a small body; those of tests/deployed train ResNet-18."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small import SmallResNet

from fedbm.models import backbone


@pytest.fixture(scope="module", autouse=True)
def small_body() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbone, "ResNet18", SmallResNet)
        yield
