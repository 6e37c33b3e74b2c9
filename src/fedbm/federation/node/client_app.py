"""The Flower ClientApp that a node's SuperNode starts for every message."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbm.errors import FedBMError
from fedbm.federation.protocol.codec import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import CENSUS, EVALUATE, REFUSED, TRAIN
from fedbm.federation.site_log import tell

app = ClientApp()


def _reply(kind: str, message: Message, context: Context) -> Message:
    """What the node answers. Flower would send the text of an exception to the server, so none may get through."""
    try:
        from fedbm.federation.node.handler import answer  # torch is loaded here, once it is needed

        try:
            request = from_records(message.content)
        except FedBMError:
            request = Envelope({})  # has no terms, so it is refused as such
        found = answer(kind, request, context.node_config)
    except Exception as error:  # an audit that cannot be written, say
        tell(error)
        found = Envelope({"code": "failed"})
    return Message(to_records(found), reply_to=message)


@app.query("census")
def census(message: Message, context: Context) -> Message:
    return _reply(CENSUS, message, context)


@app.query("refused")
def refused(message: Message, context: Context) -> Message:
    return _reply(REFUSED, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    return _reply(TRAIN, message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return _reply(EVALUATE, message, context)
