"""Envelopes survive Flower's records; records of any other kind, and answers that are no answers, are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedbm.errors import FedBMError
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.packing import pack, unpack
from fedbm.federation.protocol.reply_checks import read_matrix, read_training

REPORT: dict[str, Any] = {"n": 3, "losses": {}, "seconds": 1.0, "keeps": False, "privacy": None}


def test_an_envelope_returns() -> None:
    state = {"w": torch.randn(3, 2), "n": torch.tensor(4), "empty": torch.zeros(0)}
    sent = Envelope({"round": 3, "name": "Größe"}, {"model": pack(state), "task.concepts": pack({})})
    found = from_records(to_records(sent))
    assert found.body == sent.body
    assert list(found.packed) == ["model", "task.concepts"]
    assert all(torch.equal(unpack(found.packed["model"])[name], value) for name, value in state.items())
    assert unpack(found.packed["task.concepts"]) == {}


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"fedbm": ConfigRecord({})}),
        RecordDict({"fedbm": ConfigRecord({"json": 3})}),
        RecordDict({"fedbm": ConfigRecord({"json": "{"})}),
        RecordDict({"fedbm": ConfigRecord({"json": "[" * 100_000})}),
        RecordDict({"fedbm": ConfigRecord({"json": "[]"})}),
        RecordDict({"fedbm": ConfigRecord({"json": "{}", "header:x": b"bytes"})}),
        RecordDict({"fedbm": ConfigRecord({"json": "{}" + " " * (5 << 20)})}),
        RecordDict(
            {
                "fedbm": ConfigRecord({"json": "{}", "header:x": "{}"}),
                "tensors:x": ArrayRecord({"float32": Array(np.zeros(3, dtype=np.float32))}),
            }
        ),
    ],
)
def test_other_records_are_refused(records: RecordDict) -> None:
    with pytest.raises(FedBMError):
        from_records(records)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(json_values)
def test_a_matrix_is_counts_or_refused(value: Any) -> None:
    with pytest.raises(FedBMError):
        read_matrix(value, 4)


def test_a_matrix_by_hand() -> None:
    assert read_matrix([[1, 0], [2, 3]], 2).tolist() == [[1, 0], [2, 3]]
    for wrong in ([[1, 0], [2, -3]], [[1, 0], [2, 3.0]], [[1, 0], [2, True]], [[1, 0], [2, 10**12]]):
        with pytest.raises(FedBMError, match="its confusion matrix cannot be read"):
            read_matrix(wrong, 2)


@given(json_values, json_values)
def test_losses_are_numbers_or_refused(losses: Any, seconds: Any) -> None:
    try:
        found = read_training({**REPORT, "losses": losses, "seconds": seconds})
    except FedBMError:
        return
    assert all(isinstance(value, float) and name.isidentifier() for name, value in found.mean_losses.items())
    assert found.seconds >= 0


def test_numbers_beyond_every_float_are_refused() -> None:
    with pytest.raises(FedBMError, match="its report of the training cannot be read"):
        read_training({**REPORT, "losses": {"x": 10**400}})


@given(json_values, json_values)
def test_privacy_loss_is_finite_or_null_or_refused(own: Any, total: Any) -> None:
    body = {**REPORT, "privacy": {"epsilon": own, "epsilon_all_runs": total, "bound": "<b>"}}
    sound = [
        value is None or (type(value) in (int, float) and math.isfinite(value) and 0 <= value <= 1e100)
        for value in (own, total)
    ]
    if all(sound):
        found = read_training(body).privacy
        assert found is not None
        assert (found.epsilon, found.epsilon_all_runs) == (own, total)
    else:
        with pytest.raises(FedBMError, match="its report of the training cannot be read"):
            read_training(body)


@pytest.mark.parametrize("told", [4.0, [], {"epsilon": 1.0}, {"epsilon": 10**400, "epsilon_all_runs": 1}])
def test_privacy_loss_of_another_form_is_refused(told: Any) -> None:
    with pytest.raises(FedBMError, match="its report of the training cannot be read"):
        read_training({**REPORT, "privacy": told})


def test_losses_that_are_nested_too_deep_are_refused() -> None:
    nested: Any = 0.0
    for depth in range(100_000):
        nested = [nested]
        if depth in (900, 99_999):
            with pytest.raises(FedBMError, match="its report of the training cannot be read"):
                read_training({**REPORT, "losses": {"x": nested}})
