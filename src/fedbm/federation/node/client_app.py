"""The Flower ClientApp that a node's SuperNode starts for every message."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbm.errors import FedBMError
from fedbm.federation.protocol.codec import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import log_error

app = ClientApp()


@app.query("census")
@app.query("refused")
@app.train()
@app.evaluate()
def reply(message: Message, context: Context) -> Message:
    """Return the node's answer. No exception may escape: Flower would send its text to the server."""
    try:
        from fedbm.federation.node.handler import answer  # imported here, so that a failing import is caught too

        try:
            request = from_records(message.content)
        except FedBMError:
            request = Envelope({})  # it has no terms, so it is refused
        found = answer(message.metadata.message_type, request, context.node_config)
    except Exception as error:  # for example, the audit cannot be written
        log_error(error)
        found = Envelope({"code": "failed"})
    return Message(to_records(found), reply_to=message)
