"""Send messages over Flower's grid. A message is one JSON text, and the header and the raw bytes of each packed state.

Flower sends each object of a message in its own HTTP request. So a small state is in the same record as the text, and
only a large state has an array record, which Flower divides. Nothing is decoded before packing.py has checked it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import DTYPES, MAX_HEADER_LENGTH, Packed

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL = 0.2  # seconds between two checks for a reply
MAX_INLINE_BYTES = 4 << 20  # of a state next to the text; a reverse proxy may refuse a body of more than 16 MB
_BODY, _STYPE = "fedbm", "fedbm.flat"


@dataclass(frozen=True)
class Envelope:
    """The content of one message, and its tensors."""

    body: dict[str, Any]
    packed: Mapping[str, Packed] = field(default_factory=dict)


def to_records(envelope: Envelope) -> RecordDict:
    values: dict[str, Any] = {"json": json.dumps(envelope.body, allow_nan=False, ensure_ascii=False)}
    records = RecordDict()
    for name, packed in envelope.packed.items():
        values[f"header:{name}"] = packed.header
        if packed.size <= MAX_INLINE_BYTES:
            values |= {f"{wire}:{name}": buffer for wire, buffer in packed.buffers.items()}
            continue
        flat = {
            wire: Array(wire, (len(buffer) // DTYPES[wire].itemsize,), _STYPE, buffer)
            for wire, buffer in packed.buffers.items()
        }
        records[f"tensors:{name}"] = ArrayRecord(flat)
    records[_BODY] = ConfigRecord(values)
    return records


def from_records(records: RecordDict) -> Envelope:
    """Return the envelope that to_records() converted; raise FedBMError for other records."""
    try:
        values = records.config_records[_BODY]
        texts = {key: value for key, value in values.items() if key == "json" or key.startswith("header:")}
        if any(not isinstance(text, str) or len(text) > MAX_HEADER_LENGTH for text in texts.values()):
            raise ValueError("a text")
        if not isinstance(body := json.loads(str(texts.pop("json"))), dict):
            raise ValueError("the body")
        packed = {}
        for key, header in texts.items():
            name = key.removeprefix("header:")
            arrays = records.array_records.get(f"tensors:{name}") or ArrayRecord()
            inline = {wire: values[f"{wire}:{name}"] for wire in DTYPES if f"{wire}:{name}" in values}
            sound = all(array.stype == _STYPE and wire in DTYPES for wire, array in arrays.items())
            if not sound or not all(isinstance(buffer, bytes) for buffer in inline.values()):
                raise ValueError("the tensors")
            large = {wire: array.data for wire, array in arrays.items()}
            packed[name] = Packed(str(header), {**large, **cast(dict[str, bytes], inline)})
    except (KeyError, ValueError, RecursionError) as error:
        raise FedBMError("this is not a message of fedbm") from error
    return Envelope(body, packed)


def send(grid: Grid, node: int, kind: str, envelope: Envelope, lifetime: float) -> str:
    """Send a request, and return its id, or '' if Flower did not accept it.

    After *lifetime* seconds Flower drops both the request and its reply.
    """
    message = Message(to_records(envelope), node, kind, ttl=lifetime)
    return next(iter(grid.push_messages([message])), "")


def fetch(grid: Grid, message_id: str) -> Envelope | None:
    """Return the reply, or None if there is none yet; raise FedBMError if none will come or it cannot be read.

    A reply belongs to the request that it names, since replies made by Flower itself have no node. Only the code of an
    error is used: its text may come from a site.
    """
    if not message_id:
        raise FedBMError("Flower did not accept the request")
    try:
        for reply in grid.pull_messages([message_id]):
            if reply.metadata.reply_to_message_id == message_id:
                if reply.has_error():
                    raise FedBMError(f"no answer arrived: Flower reports error {int(reply.error.code)}")
                return from_records(reply.content)
        return None
    except (FedBMError, httpx.HTTPError):  # HTTPError: of the SuperLink
        raise
    except Exception as error:  # Flower decodes what a node sent, and raises many kinds of errors
        raise FedBMError("its answer cannot be decoded") from error


def limit_messages(most: int, longest: float) -> None:
    """Let this process refuse a message with more than *most* bytes, before it is in memory as a whole.

    A node can announce objects that it never sends. So this process waits *longest* seconds for them, not two hours as
    in Flower, and looks for them again after 0.1 s, not 1 s.
    """
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import http_grid

    def pull_within_limit(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> Any:
        total, lock = 0, threading.Lock()

        def pull(object_id: str) -> bytes:
            nonlocal total
            content = pull_object_fn(object_id)
            with lock:
                total += len(content)
            if total > most:
                raise FedBMError(f"its message has more than {most:,} bytes, the most that this run needs")
            return content

        return pull_objects(object_ids, pull, initial_backoff=0.1, max_time=longest, **options)

    vars(http_grid)["pull_objects"] = pull_within_limit
