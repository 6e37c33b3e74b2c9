"""A run with a partition made in Python is compared with runs whose settings describe the same partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedbm
from fedbm.report.grouping import group_runs, settings


def test_a_partition_made_in_python_is_no_other_setting(tiny: dict[str, Any], tmp_path: Path) -> None:
    taken = ("data", "method", "size", "channels", "clients", "beta", "seed", "out")
    given = {key: value for key, value in tiny.items() if key not in taken}
    data = fedbm.load(tiny["data"], size=16, channels=1)
    parts = fedbm.dirichlet(data, clients=3, beta=0.5, seed=0)
    own = fedbm.simulate(data, parts, method="fedavg", seed=0, out=str(tmp_path), **given)
    named = fedbm.simulate(
        tiny["data"], size=16, channels=1, clients=3, beta=0.5, method="fedavg", seed=1, out=str(tmp_path), **given
    )
    assert own.config["data"]["partition"] == "file"
    assert settings(own, "data") == settings(named, "data")
    [group] = group_runs([own, named])
    [row] = group.rows
    assert len(row.runs) == 2
