"""A node's program: one process that answers all messages of the server, so that a run stays loaded in between.

    python -m fedbm.federation.node.worker ADDRESS NODE_CONFIG      in the node's folder, with node.key and ca.crt

It connects to the SuperLink as Flower's SuperNode does, but answers the messages itself. What the server sent as the
run's app is compared with the app of this package, never installed and never loaded.

A worker ends itself, with tracebacks in its log, if a message takes longer than Flower keeps the reply.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from fedbm.errors import FedBMError
from fedbm.federation.deploy.flower import ADMITTED, SIGNED_OFF, is_own_app
from fedbm.federation.node.handler import Site, answer
from fedbm.federation.node.loaded_run import LoadedRun
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import CENSUS, log_error

SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.1, 3.0  # between two questions for a message
MAX_CENSUS_S = 2 * 3600.0  # a census may have to prepare the images; its answer is kept for a day
MAX_MESSAGE_S = 30 * 24 * 3600.0


def reply(message: Message, node_config: dict[str, Any], kept: dict[Site, LoadedRun], own_app: bool = True) -> Message:
    """Return the node's answer. If the run's app is not this package's own, the message is refused.

    No exception may escape, so that the server always gets an answer, and never an error text.
    """
    try:
        try:
            request = from_records(message.content)
        except FedBMError:
            request = Envelope({})  # it has no terms, so it is refused
        found = answer(message.metadata.message_type if own_app else "app", request, node_config, kept)
    except Exception as error:  # for example, the audit cannot be written
        log_error(error)
        found = Envelope({"code": "failed"})
    return Message(to_records(found), reply_to=message)


class Worker:
    """Answer the messages that arrive over one connection, which is what Flower's `http_request_response` yields."""

    def __init__(self, connection: Any, node_config: dict[str, Any]) -> None:
        self._node, self._receive, self._send, self._get_run, self._get_fab, *objects = connection
        self._pull_object, self._push_object, self._confirm = objects
        self._config, self._kept = node_config, dict[Site, LoadedRun]()

    def serve_next(self) -> bool:
        """Answer one message, and return whether there was one whose run continues."""
        try:
            if (found := self._receive()) is None:
                return False
            self._answer(*found)
        except RunNotRunningException:  # nobody waits for an answer any more
            print("the run of a message has ended", file=sys.stderr, flush=True)
            return False  # any answer 403 means this to Flower, so the next question must not follow at once
        return True

    def _answer(self, message: Message, tree: ObjectTree) -> None:
        """Pull a message as a whole, and send the reply. If either fails, the server gets no answer and asks again."""
        run, kind = message.metadata.run_id, message.metadata.message_type
        TaskIdentity.task_id = TaskIdentity.run_id = run
        TaskIdentity.node_id = self._node
        limit = MAX_CENSUS_S if kind == CENSUS else MAX_MESSAGE_S
        faulthandler.dump_traceback_later(max(1.0, min(message.metadata.ttl, limit)), exit=True)
        try:
            pull, confirm = partial(self._pull_object, run), partial(self._confirm, run)
            message = pull_and_inflate_object_from_tree(
                tree, pull, confirm, return_type=Message, initial_backoff=SHORTEST_WAIT_S
            )
            message.metadata.__dict__["_message_id"] = tree.object_id
            bundle = self._get_fab(self._get_run(run).fab_hash, run)
            start = time.monotonic()
            found = reply(message, self._config, self._kept, is_own_app(bundle.content))
            found.metadata.__dict__["_message_id"] = found.object_id
            with no_object_id_recompute():
                wanted, session = self._send(found, get_object_tree(found), time.monotonic() - start)
                push = partial(self._push_object, run, session)
                push_objects(get_all_nested_objects(found), push, object_ids_to_push=wanted)
        except RunNotRunningException:
            raise
        except Exception as error:
            log_error(error)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def serve(self) -> None:
        """Answer messages without end. A wait lasts a tenth of the time since the last message, within bounds.

        So a message is found soon, and an idle node asks no more often than Flower intends.
        """
        since = time.monotonic()
        while True:
            if self.serve_next():
                since = time.monotonic()
            else:
                time.sleep(min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, (time.monotonic() - since) / 10)))


def refuse_redirects() -> None:
    """Let this process follow no redirects: a server could have it send requests to other machines of the site."""
    start = ProtobufClient.__init__

    def start_without(self: ProtobufClient, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        self._client.follow_redirects = False

    ProtobufClient.__init__ = start_without  # type: ignore[method-assign]


def main() -> None:
    address, config = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    refuse_redirects()
    key = load_ssh_private_key(Path("node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    try:
        with http_request_response(address, False, Path("ca.crt").read_bytes(), (key, key.public_key())) as connection:
            print(ADMITTED, flush=True)
            Worker(connection, json.loads(config)).serve()
    except KeyboardInterrupt:  # by a signal; Flower raises one if the server does not accept the signature
        print(SIGNED_OFF, flush=True)


if __name__ == "__main__":
    main()
