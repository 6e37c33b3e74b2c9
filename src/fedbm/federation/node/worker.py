"""A node's worker: one process that answers all messages of its SuperNode, so that a run stays loaded in between.

    python -m fedbm.federation.node.worker HOST:PORT SECRET_FILE

It acquires a task from the SuperNode, pulls the message, calls this package's client app and pushes the reply. It runs
only that app: what the server sent as the run's app is compared with it, never installed and never loaded.

A worker ends itself, with tracebacks in its log, if a message takes longer than Flower keeps the reply.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import httpx
from flwr.app import Context
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedbm.federation.deploy.flower import WORKER_READY, is_own_app
from fedbm.federation.node import handler as handler  # loads torch before the first message
from fedbm.federation.node.client_app import reply
from fedbm.federation.node.supernode import IdleWait, shorten_object_waits
from fedbm.federation.protocol.messages import CENSUS

LONGEST_WAIT_S = 1.0
MAX_CENSUS_S = 2 * 3600.0  # a census may have to prepare the images; its answer is kept for a day
MAX_MESSAGE_S = 30 * 24 * 3600.0
MESSAGE_DROPPED = "could not be found"  # in Flower's error if a SuperNode no longer has a part of a message
TASKS = (TaskType.CLIENT_APP, TaskType.AGENT_APP)  # an AgentApp is never ours; it is refused like any other app


class Worker:
    """Serve the tasks of one SuperNode."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._address = address
        signed = SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        self._client = self._connect(signed)

    def _connect(self, interceptor: ProtobufClientInterceptor, retry: RetryInvoker | None = None) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,  # over loopback
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), interceptor],
            retry_invoker=retry,
        )

    def serve_next(self) -> bool:
        """Serve one task, and return whether there was one.

        An error ends the worker, and with it the node: its SuperNode would wait for the reply.
        """
        try:
            found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=TASKS))
        except httpx.TransportError:  # the SuperNode is still starting
            return False
        if not found.token:
            return False
        client = self._connect(RuntimeTokenHttpInterceptor(found.token), make_simple_http_retry_invoker())
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        context = self._answer(client)
        push_task_output(client, context, SubStatus.COMPLETED if context else SubStatus.FAILED, "")
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()
        return True

    def _answer(self, client: RuntimeHttpClient) -> Context | None:
        """Answer the message of a task and return its context; None if the SuperNode has dropped the message."""
        try:
            message, context, _, bundle = pull_task_input(client)
        except ObjectPullError as error:
            if MESSAGE_DROPPED in str(error):
                return None
            raise
        limit = MAX_CENSUS_S if message.metadata.message_type == CENSUS else MAX_MESSAGE_S
        faulthandler.dump_traceback_later(max(1.0, min(message.metadata.ttl, limit)), exit=True)
        try:
            # not through Flower's ClientApp, which raises for a message of an unknown type
            push_message(client, reply(message, context, is_own_app(bundle.content)), context)
        finally:
            faulthandler.cancel_dump_traceback_later()
        return context


def main() -> None:
    address, secret = sys.argv[1:]
    shorten_object_waits()
    worker = Worker(address, Path(secret).read_bytes())
    print(WORKER_READY, flush=True)
    idle = IdleWait()
    while True:
        if worker.serve_next():
            idle.restart()
        else:
            idle.sleep(LONGEST_WAIT_S)


if __name__ == "__main__":
    main()
