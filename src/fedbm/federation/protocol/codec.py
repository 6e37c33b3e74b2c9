"""An envelope ↔ Flower's records: one JSON text, and one array record per packed state.

Arrays carry their bytes as they are, without a .npy header: nothing is decoded before packing.py has checked it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import DTYPES, MOST_HEADER, Packed

if TYPE_CHECKING:
    from flwr.app import RecordDict

_BODY, _STYPE = "fedbm", "fedbm.flat"


@dataclass(frozen=True)
class Envelope:
    """What one message says, and the tensors that come with it."""

    body: dict[str, Any]
    packed: Mapping[str, Packed] = field(default_factory=dict)


def to_records(envelope: Envelope) -> RecordDict:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    texts = {"json": json.dumps(envelope.body, allow_nan=False, ensure_ascii=False)}
    texts |= {f"header:{name}": packed.header for name, packed in envelope.packed.items()}
    records = RecordDict({_BODY: ConfigRecord(dict(texts))})
    for name, packed in envelope.packed.items():
        flat = {
            wire: Array(wire, (len(buffer) // DTYPES[wire].itemsize,), _STYPE, buffer)
            for wire, buffer in packed.buffers.items()
        }
        records[f"tensors:{name}"] = ArrayRecord(flat)
    return records


def from_records(records: RecordDict) -> Envelope:
    """What to_records() was given; FedBMError for records of any other kind."""
    from flwr.app import ArrayRecord

    texts = records.config_records.get(_BODY)
    if texts is None or not isinstance(texts.get("json"), str):
        raise FedBMError("the message is none of fedbm's")
    if any(not isinstance(text, str) or len(text) > MOST_HEADER for text in texts.values()):
        raise FedBMError("the message's text is too long")
    try:
        body = json.loads(str(texts["json"]))
    except (ValueError, RecursionError) as error:
        raise FedBMError("the message's text cannot be read") from error
    if not isinstance(body, dict):
        raise FedBMError("the message's text cannot be read")
    packed = {}
    for key, header in texts.items():
        kind, _, name = key.partition(":")
        if kind == "header":
            arrays = records.array_records.get(f"tensors:{name}") or ArrayRecord()
            if any(array.stype != _STYPE or wire not in DTYPES for wire, array in arrays.items()):
                raise FedBMError("the message's tensors are not packed as fedbm packs them")
            packed[name] = Packed(str(header), {wire: array.data for wire, array in arrays.items()})
    return Envelope(body, packed)
