"""What a node answers, read with suspicion: the numbers must be numbers, and about what was asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbm.errors import FedBMError
from fedbm.runs.record_types import PrivacyLoss
from fedbm.utils.metrics import Array
from fedbm.utils.typed_json import schema_of

MAX_COUNT = 10**9  # of one cell, so that sums fit in 64 bits; the census bounds the whole matrix


def same(body: Mapping[str, Any], key: str, expected: Any) -> None:
    """An answer must be to this very request."""
    if body.get(key) != expected:
        raise FedBMError(f"it answered for another {key} than it was asked")


def read_losses(body: Mapping[str, Any]) -> tuple[dict[str, float], float]:
    """Mean losses by term, NaN where one was not finite, and the seconds it took."""
    losses, seconds = body.get("losses"), _number(body.get("seconds"))
    if not isinstance(losses, dict) or len(losses) > 50 or seconds is None:
        raise FedBMError("its losses cannot be read")
    found = {name: math.nan if value is None else _number(value) for name, value in losses.items()}
    if None in found.values() or not all(str(name).isidentifier() for name in found):
        raise FedBMError("its losses cannot be read")
    return {name: value for name, value in found.items() if value is not None}, seconds


def read_privacy(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return ε of this run and of all runs at the site, None without a finite bound; "bound" says so in a word."""
    told = body.get("privacy")
    if schema_of(PrivacyLoss)(told, "", {}):
        raise FedBMError("its privacy loss cannot be read")
    assert isinstance(told, dict)
    total = told["epsilon_all_runs"]
    bound = "none" if total is None else "finite"
    return {"epsilon": told["epsilon"], "epsilon_all_runs": total, "bound": bound}


def _number(value: Any) -> float | None:
    """*value* as a float; None where it is no number, or beyond every float."""
    try:
        return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def read_matrix(value: Any, classes: int) -> Array:
    """Return [K,K] counts."""
    square = isinstance(value, list) and len(value) == classes
    if not square or not all(isinstance(row, list) and len(row) == classes for row in value):
        raise FedBMError(f"its confusion matrix is not {classes} × {classes}")
    if not all(type(count) is int and 0 <= count <= MAX_COUNT for row in value for count in row):
        raise FedBMError("its confusion matrix does not hold counts")
    return np.array(value, dtype=np.int64)
