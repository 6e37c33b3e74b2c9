"""Pack a state into one flat array per dtype and a JSON header with names, dtypes, shapes and a SHA-256 of it all.

    header   {"format": 1, "tensors": [[name, dtype, shape, how], …], "sha256": …}
    buffers  {dtype on the wire: the tensors' values end to end, little-endian}

A tensor is sent `plain`, bit for bit; as `half`, rounded to 16 bits; or as `delta`, the difference to the other side's
tensor, rounded to 16 bits. The reader checks the sizes before it decodes anything, then the checksum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedbm.errors import FedBMError
from fedbm.methods.base import State

FORMAT = 1
MAX_HEADER_LENGTH = 4 << 20  # characters; the header of a ResNet-18 has 7,000
MAX_NUMEL = 1 << 40  # numbers in a tensor
Compression = Literal["none", "half", "delta"]

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ROUNDED = (torch.float64, torch.float32)  # the dtypes that half and delta shrink


class TensorEntry(NamedTuple):
    """One tensor in a header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    how: str  # plain | half | delta

    @property
    def wire(self) -> str:
        return self.dtype if self.how == "plain" else "float16"

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Packed:
    """A packed state."""

    header: str
    buffers: Mapping[str, bytes]

    @property
    def size(self) -> int:
        """Bytes of the tensors, without the header."""
        return sum(len(buffer) for buffer in self.buffers.values())

    @cached_property
    def digest(self) -> str:
        """The header's SHA-256, which unpack() compares with the content."""
        return str(json.loads(self.header)["sha256"])


def pack(state: State, compression: Compression = "none", base: State | None = None) -> Packed:
    """Pack a state; with delta, as differences to the tensors of *base* with the same name, shape and dtype."""
    entries: list[TensorEntry] = []
    pieces: dict[str, list[Tensor]] = {}
    for name, value in sorted(state.items()):  # so that equal states have equal digests
        if value.dtype not in _NAMES:
            raise FedBMError(f"{name} is {value.dtype}, which cannot be sent; supported are {', '.join(DTYPES)}")
        how, sent = _encode(name, value.detach().cpu(), compression, (base or {}).get(name))
        entry = TensorEntry(name, _NAMES[value.dtype], tuple(value.shape), how)
        entries.append(entry)
        pieces.setdefault(entry.wire, []).append(sent.reshape(-1))
    buffers = {wire: torch.cat(flat).view(torch.uint8).numpy().tobytes() for wire, flat in sorted(pieces.items())}
    header = {"format": FORMAT, "tensors": entries}
    return Packed(json.dumps({**header, "sha256": _checksum(header, buffers)}, ensure_ascii=False), buffers)


def digest(state: State) -> str:
    """Return the SHA-256 of names, dtypes, shapes and values: equal if two states are equal, bit for bit."""
    return pack(state).digest


def unpack(packed: Packed, base: State | None = None, expected: State | None = None) -> State:
    """Return the packed state, up to the rounding of compression; raise FedBMError if it is damaged.

    If *expected* is given, it must have the same names, dtypes and shapes.
    """
    entries = _read_header(packed)
    if expected is not None:
        _check_entries(entries, expected)
    if packed.digest != _checksum({"format": FORMAT, "tensors": entries}, packed.buffers):
        raise FedBMError("the tensors were damaged on the way: their checksum differs")
    values = {}  # dtype on the wire → its tensors
    for wire, buffer in packed.buffers.items():
        sizes = [entry.numel for entry in entries if entry.wire == wire]
        flat = torch.frombuffer(bytearray(buffer), dtype=DTYPES[wire]) if buffer else torch.empty(0, dtype=DTYPES[wire])
        values[wire] = iter(torch.split(flat, sizes))
    state: State = {}
    for entry in entries:
        value = next(values[entry.wire]).reshape(entry.shape)
        if entry.how == "plain":
            state[entry.name] = value.clone()
            continue
        value = value.to(DTYPES[entry.dtype])
        if entry.how == "delta":
            known = (base or {}).get(entry.name)
            if known is None or known.shape != value.shape or known.dtype != value.dtype:
                raise FedBMError("the header has a difference to a tensor that was not sent")
            value = known.cpu() + value
        state[entry.name] = value
    return state


def start_of(name: str, value: Tensor, base: State) -> Tensor:
    """Return the tensor that an update is measured from, as float64 on the CPU: the one in *base*, or 0."""
    known = base.get(name)
    if known is None or known.shape != value.shape:
        return torch.zeros(value.shape, dtype=torch.float64)
    return known.detach().cpu().double()


def _encode(name: str, value: Tensor, compression: Compression, known: Tensor | None) -> tuple[str, Tensor]:
    if compression == "none" or value.dtype not in _ROUNDED:
        return "plain", value
    how, exact = "half", value
    if compression == "delta" and known is not None and known.shape == value.shape and known.dtype == value.dtype:
        how, exact = "delta", value - known.cpu()
    rounded = exact.half()
    if bool((rounded.isinf() & exact.isfinite()).any()):
        raise FedBMError(f"{name} has values beyond half precision (65504); use compression = none")
    return how, rounded


def _read_header(packed: Packed) -> list[TensorEntry]:
    """Return the entries of the header; raise FedBMError unless they match the sizes of the buffers."""
    try:
        found = json.loads(packed.header)
        version, entries = found["format"], [_entry(item) for item in found["tensors"]]
        if not isinstance(found["sha256"], str):
            raise TypeError("checksum")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FedBMError("the header of the tensors cannot be read") from error
    if version != FORMAT or len({entry.name for entry in entries}) < len(entries):
        raise FedBMError(f"the tensors are not packed in format {FORMAT}, or two of them have the same name")
    sizes = dict.fromkeys(packed.buffers, 0)
    for entry in entries:
        sizes[entry.wire] = sizes.get(entry.wire, 0) + entry.numel * DTYPES[entry.wire].itemsize
    if sizes != {wire: len(buffer) for wire, buffer in packed.buffers.items()}:
        raise FedBMError("the number of bytes does not match the header")
    return entries


def _entry(item: Any) -> TensorEntry:
    name, dtype, shape, how = item
    known = isinstance(name, str) and len(name) <= 500 and dtype in DTYPES and how in ("plain", "half", "delta")
    sizes = isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)
    if not (known and sizes) or (how != "plain" and DTYPES[dtype] not in _ROUNDED):
        raise ValueError("entry")
    if math.prod(n or 1 for n in shape) >= MAX_NUMEL:  # torch computes strides of an empty tensor too
        raise ValueError("shape")
    return TensorEntry(name, dtype, tuple(shape), how)


def _check_entries(entries: list[TensorEntry], expected: State) -> None:
    found = {entry.name: (DTYPES[entry.dtype], entry.shape) for entry in entries}
    for name, form in expected.items():
        if found.get(name) != (form.dtype, tuple(form.shape)):
            raise FedBMError(f"{name} is missing, or is not {form.dtype} with the shape {list(form.shape)}")
    if len(found) > len(expected):
        raise FedBMError("it has tensors that the method does not send")


def _checksum(header: Mapping[str, Any], buffers: Mapping[str, bytes]) -> str:
    found = hashlib.sha256(json.dumps(header, ensure_ascii=True).encode())
    for wire in sorted(buffers):
        found.update(buffers[wire])
    return found.hexdigest()
