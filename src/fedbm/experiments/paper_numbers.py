"""The paper's numbers, and what is not like the paper in a run of ours."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedbm.experiments.spec import PAPER
from fedbm.runs.reader import RunView

TRIALS = 3


@dataclass(frozen=True)
class Published:
    """Mean and standard deviation over three trials, in percent as printed, by metric."""

    mean: Mapping[str, float]
    std: Mapping[str, float]

    def shown(self, metric: str) -> str:
        """As the paper prints it, with two digits: '73.55 ± 0.31'."""
        return f"{self.mean[metric]:.2f} ± {self.std[metric]:.2f}"


@dataclass(frozen=True)
class Deviation:
    mark: str
    paper: str
    ours: str
    why: str


def published(table: str, data: str, beta: Any, row: str) -> Published | None:
    """What the paper prints in this cell; None where it prints nothing."""
    return _numbers().get((table, data, None if beta is None else float(beta), row))


@cache
def _numbers() -> dict[tuple[str, str, float | None, str], Published]:
    lines = csv.DictReader(PAPER.joinpath("numbers.csv").read_text(encoding="utf-8").splitlines())
    return {
        (line["table"], line["data"], float(line["beta"]) if line["beta"] else None, line["row"]): Published(
            {"accuracy": float(line["accuracy"]), "f1": float(line["f1"])},
            {"accuracy": float(line["accuracy_std"]), "f1": float(line["f1_std"])},
        )
        for line in lines
    }


def deviations(run: RunView) -> list[Deviation]:
    """What is not like the paper in this run, from its own configuration and data."""
    return [
        Deviation(entry["mark"], entry["paper"], entry["ours"], entry["why"])
        for entry in _deviations()
        if run.data in entry.get("data", [run.data])
        and run.method in entry.get("methods", [run.method])
        and entry.get("train_images", run.train_images) == run.train_images
        and entry.get("unless_train_images") != run.train_images
        and _holds(run, entry.get("when", {}))
        and not ("unless" in entry and _holds(run, entry["unless"]))
    ]


def _holds(run: RunView, conditions: Mapping[str, Any]) -> bool:
    """Whether the run has every setting; a list names all values that will do."""
    return all(
        _setting(run, key) in (value if isinstance(value, list) else [value]) for key, value in conditions.items()
    )


@cache
def _deviations() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(PAPER.joinpath("deviations.toml").read_text(encoding="utf-8"))[
        "deviation"
    ]
    return found


def _setting(run: RunView, key: str) -> Any:
    section, _, name = key.partition(".")
    return run.config.get(section, {}).get(name)
