"""A run to interrupt, and the same run never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from whole_runs import folder_of, play, small_plan_of

from fedbm.runs.plan import Plan


@pytest.fixture(scope="session")
def unbroken(tiny_fedbm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedBM with kept momentum, never interrupted: what the interrupted ones are held against."""
    plan = small_plan_of(tiny_fedbm, tmp_path_factory.mktemp("unbroken"), keep_optimizer=True)
    play(plan)
    return folder_of(plan)


@pytest.fixture
def plan(tiny_fedbm: dict[str, Any], tmp_path: Path) -> Plan:
    return small_plan_of(tiny_fedbm, tmp_path, keep_optimizer=True)
