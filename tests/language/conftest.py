"""transformers, imported by the tests that need it: it takes a second."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def transformers() -> Any:
    return pytest.importorskip("transformers")
