"""What is packed returns bit for bit, or rounded as was asked; anything else is refused in a sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import DTYPES, Packed, digest, pack, unpack

names = st.text(min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def states(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    state = {}
    for name in draw(st.lists(names, unique=True, max_size=6)):
        dtype, shape = DTYPES[draw(st.sampled_from(sorted(DTYPES)))], draw(shapes)
        seed = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
        values = torch.randint(-100, 100, shape, generator=seed).double() / 7
        state[name] = (values > 0) if dtype is torch.bool else values.to(dtype)
    return state


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and torch.equal(left[name], right[name])
        for name in left
    )


@settings(max_examples=60)
@given(states())
def test_plain_is_bit_for_bit(state: dict[str, torch.Tensor]) -> None:
    packed = pack(state)
    assert equal(unpack(packed), state)
    assert packed.size == sum(value.numel() * value.element_size() for value in state.values())
    assert packed.digest == pack(dict(reversed(state.items()))).digest == digest(state)


def test_one_array_per_dtype() -> None:
    state = {"a": torch.ones(3), "b": torch.zeros(2, 2), "n": torch.tensor(7), "m": torch.tensor([True])}
    assert {wire: len(buffer) for wire, buffer in pack(state).buffers.items()} == {"float32": 28, "int64": 8, "bool": 1}


def test_odd_values_travel() -> None:
    state = {"x": torch.tensor([float("nan"), float("inf"), -0.0]), "t": torch.arange(6.0).view(2, 3).T}
    found = unpack(pack(state))
    assert torch.equal(found["x"].view(torch.int32), state["x"].view(torch.int32))
    assert torch.equal(found["t"], state["t"])


def test_half_and_delta_round_as_they_say() -> None:
    base = {"w": torch.linspace(-2, 2, 101), "n": torch.tensor(2**60 + 1)}
    state = {"w": base["w"] + 1e-3 * torch.sin(torch.arange(101.0)), "n": base["n"] + 1, "own": torch.tensor([0.1])}
    half, delta = pack(state, "half"), pack(state, "delta", base)
    assert half.size == delta.size == 2 * 101 + 8 + 2
    assert torch.equal(unpack(half)["w"], state["w"].half().float())
    found = unpack(delta, base)
    assert torch.equal(found["n"], state["n"])  # whole numbers are never rounded
    assert torch.equal(found["own"], state["own"].half().float())  # nothing was sent to take the difference to
    error = {"half": (unpack(half)["w"] - state["w"]).abs().max(), "delta": (found["w"] - state["w"]).abs().max()}
    assert error["delta"] < error["half"] / 100
    with pytest.raises(FedBMError, match="a difference to a tensor that was not sent"):
        unpack(delta, {})


def test_what_half_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(FedBMError, match=r"body\.w has values beyond half precision \(65504\)"):
        pack({"body.w": torch.tensor([7e4])}, "half")


def test_a_dtype_that_cannot_be_sent_is_refused_by_name() -> None:
    with pytest.raises(
        FedBMError, match=r"z is torch\.complex64, which cannot be sent; supported are float64, float32"
    ):
        pack({"z": torch.zeros(1, dtype=torch.complex64)})


def test_damage_is_seen() -> None:
    packed = pack({"w": torch.arange(4.0), "n": torch.tensor(3)})
    flipped = bytearray(packed.buffers["float32"])
    flipped[5] ^= 1
    with pytest.raises(FedBMError, match="checksum differs"):
        unpack(dataclasses.replace(packed, buffers={**packed.buffers, "float32": bytes(flipped)}))
    with pytest.raises(FedBMError, match="the number of bytes does not match"):
        unpack(dataclasses.replace(packed, buffers={**packed.buffers, "float32": bytes(flipped[:-1])}))
    with pytest.raises(FedBMError, match="the number of bytes does not match"):
        unpack(dataclasses.replace(packed, buffers={"float32": packed.buffers["float32"]}))


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": [["w", "float32", [2**39], "plain"]]},
        {"tensors": [["w", "float32", [-4], "plain"]]},
        {"tensors": [["w", "object", [4], "plain"]]},
        {"tensors": [["w", "float32", [4], "zip"]]},
        {"tensors": [["n", "int64", [1], "half"]]},
        {"tensors": [["w", "float32", [2], "plain"], ["w", "float32", [2], "plain"]]},
        {"tensors": [["w", "float32", [True], "plain"]]},
        {"tensors": None},
        {"tensors": [3]},
        {"format": 2},
        {"sha256": None},
    ],
)
def test_a_header_that_lies_is_refused(change: dict[str, object]) -> None:
    packed = pack({"w": torch.arange(4.0)})
    header = json.dumps({**json.loads(packed.header), **change})
    with pytest.raises(FedBMError):
        unpack(Packed(header, packed.buffers))


@pytest.mark.parametrize("shape", [[2**39, 2**39, 0], [0, 2**40]])
def test_an_empty_tensor_with_a_huge_shape_is_refused(shape: list[int]) -> None:
    """Its bytes and its checksum are right."""
    header = {"format": 1, "tensors": [["w", "float32", shape, "plain"]]}
    checksum = hashlib.sha256(json.dumps(header).encode()).hexdigest()
    with pytest.raises(FedBMError, match="the header of the tensors cannot be read"):
        unpack(Packed(json.dumps({**header, "sha256": checksum}), {"float32": b""}))


def test_the_form_is_checked_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"w": torch.zeros(2, device="meta")}
    assert unpack(pack({"w": torch.ones(2)}), expected=expected)["w"].tolist() == [1, 1]
    monkeypatch.delattr(torch, "frombuffer")
    with pytest.raises(FedBMError, match=r"w is missing, or is not torch.float32 with the shape \[2\]"):
        unpack(pack({"w": torch.ones(3)}), expected=expected)
    with pytest.raises(FedBMError, match="it has tensors that the method does not send"):
        unpack(pack({"w": torch.ones(2), "x": torch.ones(1000)}), expected=expected)


@settings(max_examples=80)
@given(st.text(max_size=200) | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(json.dumps))
def test_junk_is_refused(header: str) -> None:
    with pytest.raises(FedBMError):
        unpack(Packed(header, {"float32": b"\0\0\0\0"}))
