"""A state ↔ one flat array per dtype and a JSON header with names, dtypes, shapes and a SHA-256 of it all.

    header   {"format": 1, "tensors": [[name, dtype, shape, how], …], "sha256": …}
    buffers  {dtype on the wire: the tensors' values end to end, little-endian}

A tensor travels `plain`, bit for bit; or as `half`, rounded to 16 bits; or as `delta`, its difference to what the
other side already has, rounded to 16 bits. Reading checks the sizes before anything is decoded, then the checksum.
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
MOST_HEADER = 4 << 20  # characters; ResNet-18's has seven thousand
Compression = Literal["none", "half", "delta"]

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ROUNDED = (torch.float64, torch.float32)  # what half and delta make smaller


class Entry(NamedTuple):
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
    """A state as it travels."""

    header: str
    buffers: Mapping[str, bytes]

    @property
    def size(self) -> int:
        """Bytes of the tensors; the header is not counted."""
        return sum(len(buffer) for buffer in self.buffers.values())

    @cached_property
    def digest(self) -> str:
        """What the header says; read() holds it against the content."""
        return str(json.loads(self.header)["sha256"])


def pack(state: State, compression: Compression = "none", base: State | None = None) -> Packed:
    """*state* as it travels; with delta, differences to the tensors of *base* that have the same name and form."""
    entries: list[Entry] = []
    pieces: dict[str, list[Tensor]] = {}
    for name, value in sorted(state.items()):  # so that equal states have equal digests, wherever they come from
        if value.dtype not in _NAMES:
            raise FedBMError(f"{name} is {value.dtype}, which cannot be sent: there are {', '.join(DTYPES)}")
        how, sent = _encode(name, value.detach().cpu(), compression, (base or {}).get(name))
        entry = Entry(name, _NAMES[value.dtype], tuple(value.shape), how)
        entries.append(entry)
        pieces.setdefault(entry.wire, []).append(sent.reshape(-1))
    buffers = {wire: torch.cat(flat).view(torch.uint8).numpy().tobytes() for wire, flat in sorted(pieces.items())}
    header = {"format": FORMAT, "tensors": entries}
    return Packed(json.dumps({**header, "sha256": _checksum(header, buffers)}, ensure_ascii=False), buffers)


def digest(state: State) -> str:
    """SHA-256 of names, dtypes, shapes and values: equal where two states are, bit for bit."""
    return pack(state).digest


def read_header(packed: Packed, most: int | None = None) -> list[Entry]:
    """The header's entries, once it is sure that they are what the buffers hold; nothing is decoded yet."""
    if most is not None and packed.size > most:
        raise FedBMError(f"{packed.size} bytes came where at most {most} can be right")
    if len(packed.header) > MOST_HEADER:
        raise FedBMError(f"a header of {len(packed.header)} characters came where at most {MOST_HEADER} can be right")
    try:
        found = json.loads(packed.header)
        version, entries = found["format"], [_entry(item) for item in found["tensors"]]
        if not isinstance(found["sha256"], str):
            raise TypeError("a checksum is a text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FedBMError("the header of the tensors cannot be read") from error
    if version != FORMAT:
        raise FedBMError(f"tensors are packed in format {FORMAT} here, not in the one that came")
    if len({entry.name for entry in entries}) < len(entries):
        raise FedBMError("the header names a tensor twice")
    sizes = dict.fromkeys(packed.buffers, 0)
    for entry in entries:
        sizes[entry.wire] = sizes.get(entry.wire, 0) + entry.numel * DTYPES[entry.wire].itemsize
    for wire, size in sizes.items():
        if wire not in packed.buffers or len(packed.buffers[wire]) != size:
            raise FedBMError(f"the {wire} values have another length than the header says")
    return entries


def unpack(packed: Packed, base: State | None = None, most: int | None = None) -> State:
    """The state that pack() was given, to rounding where it was compressed; FedBMError for anything else."""
    entries = read_header(packed, most)
    header = {"format": FORMAT, "tensors": entries}
    if packed.digest != _checksum(header, packed.buffers):
        raise FedBMError("the tensors were damaged on their way: their checksum is another")
    flat = {wire: _tensor(buffer, DTYPES[wire]) for wire, buffer in packed.buffers.items()}
    state: State = {}
    position = dict.fromkeys(flat, 0)
    for entry in entries:
        start = position[entry.wire]
        position[entry.wire] = start + entry.numel
        value = flat[entry.wire][start : start + entry.numel].reshape(entry.shape)
        if entry.how == "plain":
            state[entry.name] = value.clone()
            continue
        value = value.to(DTYPES[entry.dtype])
        if entry.how == "delta":
            known = (base or {}).get(entry.name)
            if known is None or known.shape != value.shape or known.dtype != value.dtype:
                raise FedBMError("a difference came to a tensor that was not sent")
            value = known.cpu() + value
        state[entry.name] = value
    return state


def _encode(name: str, value: Tensor, compression: Compression, known: Tensor | None) -> tuple[str, Tensor]:
    if compression == "none" or value.dtype not in _ROUNDED:
        return "plain", value
    fits = known is not None and known.shape == value.shape and known.dtype == value.dtype
    if compression == "delta" and fits:
        assert known is not None
        how, exact = "delta", value - known.cpu()
    else:
        how, exact = "half", value
    rounded = exact.half()
    if bool((rounded.isinf() & exact.isfinite()).any()):
        raise FedBMError(f"{name} has values beyond half precision (65504): use compression = none")
    return how, rounded


def _entry(item: Any) -> Entry:
    name, dtype, shape, how = item
    known = isinstance(name, str) and len(name) <= 500 and dtype in DTYPES and how in ("plain", "half", "delta")
    sizes = isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
    if not (known and sizes) or (how != "plain" and DTYPES[dtype] not in _ROUNDED):
        raise ValueError("no entry of a header")
    return Entry(name, dtype, tuple(shape), how)


def _checksum(header: Mapping[str, Any], buffers: Mapping[str, bytes]) -> str:
    found = hashlib.sha256(json.dumps(header, ensure_ascii=True).encode())
    for wire in sorted(buffers):
        found.update(buffers[wire])
    return found.hexdigest()


def _tensor(buffer: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(buffer), dtype=dtype) if buffer else torch.empty(0, dtype=dtype)
