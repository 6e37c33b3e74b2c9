"""In one process or over Flower: the same server state after every round, bit for bit, for every federated method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import deploy, digests_in_process

from fedbm.federation.audit import read
from fedbm.methods import METHODS

FEDERATED = [name for name in METHODS if name != "central"]


def settings_of(name: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any]) -> dict[str, Any]:
    base = tiny_fedbm if name == "fedbm" else {**tiny, "method": name}
    return {**base, "clients": 3, "rounds": 3, "ratio": 0.7, "beta": 0.5, "keep_optimizer": name == "scaffold"}


@pytest.mark.parametrize("name", FEDERATED)
def test_in_process_is_flower(name: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, settings_of(name, tiny, tiny_fedbm))
    deployed.serve()
    rounds = [line for line in read(deployed.state / "audit.jsonl") if line["event"] == "round"]
    assert [line["state"] for line in rounds] == digests_in_process(deployed.plan)
    assert [line["round"] for line in rounds] == [1, 2, 3]
