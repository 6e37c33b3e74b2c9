"""The paper's numbers, and how our experiments differ from it."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedbm.experiments.spec import PAPER, find_experiment, shipped_experiments

TRIALS = 3


@dataclass(frozen=True)
class Published:
    """Mean and standard deviation over three trials, as shares of 1, by metric."""

    mean: Mapping[str, float]
    std: Mapping[str, float]


def find_published(table: str, data: str, beta: Any, row: str) -> Published | None:
    """Return the number that the paper prints in this cell; None if it prints none."""
    return _numbers().get((table, data, None if beta is None else float(beta), row))


@cache
def _numbers() -> dict[tuple[str, str, float | None, str], Published]:
    lines = csv.DictReader(PAPER.joinpath("numbers.csv").read_text(encoding="utf-8").splitlines())
    return {
        (line["table"], line["data"], float(line["beta"]) if line["beta"] else None, line["row"]): Published(
            {metric: round(float(line[metric]) / 100, 6) for metric in ("accuracy", "f1")},
            {metric: round(float(line[f"{metric}_std"]) / 100, 6) for metric in ("accuracy", "f1")},
        )
        for line in lines
    }


def find_deviations(experiment: str, row: str, data: str) -> list[tuple[str, str]]:
    """Return (name, text) for every note on how this row differs from the paper; [] for other experiments."""
    if experiment not in shipped_experiments():
        return []
    notes, methods = _deviations()
    attached = find_experiment(experiment).deviations
    if not attached:
        return []
    names = [*attached.get("all", ()), *attached.get(data, ()), *methods.get(row, ()), *attached.get(row, ())]
    return [(name, notes[name]) for name in dict.fromkeys(names)]


@cache
def _deviations() -> tuple[dict[str, str], dict[str, list[str]]]:
    found = tomllib.loads(PAPER.joinpath("deviations.toml").read_text(encoding="utf-8"))
    return found["notes"], found["methods"]
