"""The Flower ClientApp of a node. Its worker calls it for every message, so that a run stays loaded in between."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbm.errors import FedBMError
from fedbm.federation.node.handler import answer
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import log_error

app = ClientApp()
KEPT: dict[Any, Any] = {}  # the latest run; see handler.answer()


def reply(message: Message, context: Context, own_app: bool = True) -> Message:
    """Return the node's answer. If the message is for another app than this one, it is refused.

    No exception may escape: Flower would send its text to the server.
    """
    try:
        try:
            request = from_records(message.content)
        except FedBMError:
            request = Envelope({})  # it has no terms, so it is refused
        kind = message.metadata.message_type if own_app else "app"
        found = answer(kind, request, context.node_config, KEPT)
    except Exception as error:  # for example, the audit cannot be written
        log_error(error)
        found = Envelope({"code": "failed"})
    return Message(to_records(found), reply_to=message)


for register in (app.query("census"), app.query("refused"), app.train(), app.evaluate()):
    register(reply)
