"""The features that `fedbm features` draws are those of the images that the run was scored on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from small import TinyBody
from whole_runs import folder_of, play

from fedbm.data.dataset import load
from fedbm.data.feature_shift import shift_images
from fedbm.runs.feature_map import images_of_run
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import make_config, to_sections


def test_a_run_with_a_feature_shift_has_shifted_images(tiny: dict[str, Any], scans: Path, tmp_path: Path) -> None:
    data = load(scans, size=16, channels=1)
    data = dataclasses.replace(
        data, columns={"site": np.resize(np.array(["north", "south", "east"]), len(data.labels))}
    )
    own = {key: value for key, value in tiny.items() if key not in ("data", "size", "channels")}
    column = {"partition": "column", "partition_column": "site", "clients": 3, "out": str(tmp_path)}

    def images_with(**more: Any) -> Any:
        plan = make_plan(make_config(to_sections({**own, **column, **more})), dataset=data, make_body=TinyBody)
        play(plan)
        return images_of_run(folder_of(plan), data), plan

    shifted, plan = images_with(feature_shift="brightness")
    assert np.array_equal(shifted, shift_images(data, plan.partition))
    test = data.indices("test")
    assert not np.array_equal(shifted[test], data.images[test])
    assert np.array_equal(images_with()[0], data.images)
