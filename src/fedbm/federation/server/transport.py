"""One request to one node over Flower's grid, and its reply: push, then pull until it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbm.errors import FedBMError
from fedbm.federation.protocol.codec import Envelope, from_records, to_records

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL = 0.3  # seconds between looks for a reply


def send(grid: Grid, node: int, kind: str, envelope: Envelope, lifetime: float) -> str | None:
    """Hand a request to the engine; return the id its reply will name, or None where the engine did not take it.

    After *lifetime* seconds the engine drops both the request and its reply.
    """
    from flwr.app import Message

    message = Message(to_records(envelope), node, kind, ttl=lifetime)
    return next(iter(grid.push_messages([message])), None)


def fetch(grid: Grid, message_id: str) -> Envelope | str | None:
    """The reply, or what went wrong with it in words, or None while there is none.

    Replies are told by what they reply to: those the engine makes itself come from no node. Of an error only the code
    is used, since its text may be a site's own.
    """
    for reply in grid.pull_messages([message_id]):
        if reply.metadata.reply_to_message_id != message_id:
            continue
        if reply.has_error():
            return f"no answer came through: the engine reports error {int(reply.error.code)}"
        try:
            return from_records(reply.content)
        except FedBMError as error:
            return str(error)
    return None
