"""Run Flower's SuperNode with shorter waits and without redirects: python -m fedbm.federation.node.supernode, with
Flower's own options.

The waits are constants in Flower's code, so this depends on the supported releases; a test checks it. A SuperNode asks
for a message every 3 s and for its own app's reply every 0.5 s. Here a wait lasts a tenth of the time since the last
message, within bounds: a message is found soon, and an idle node asks no more often than Flower intends.

A SuperNode takes one message, waits for a reply, sends it and takes the next message. If the run ends while one
arrives, two things go wrong in Flower:

- The worker may have the whole message. Its reply is sent first, and the reply to the next message is kept until the
  message after it, so that every answer is late by one message. Here it waits for the reply to its own message.
- The worker may have a part of the message. It waits for the rest for more than an hour, and the node is lost. Here the
  SuperNode drops the message, and the worker's next attempt fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

SHORTEST_WAIT_S = 0.1
REPLY_WAIT_S = 0.5  # the longest wait of a SuperNode for its own app's reply


class IdleWait:
    """Wait a tenth of the time since the last event, at least SHORTEST_WAIT_S."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def restart(self) -> None:
        """Count from now on: something happened."""
        self._since = time.monotonic()

    def sleep(self, longest: float) -> None:
        time.sleep(min(longest, max(SHORTEST_WAIT_S, (time.monotonic() - self._since) / 10)))


def shorten_object_waits(longest: float | None = None) -> None:
    """Let this process try again after 0.1 s, not 1 s, when an object of a message has not arrived yet.

    With *longest*, it waits so many seconds for all objects of a message, not two hours as in Flower.
    """
    from flwr.supercore.inflatable import inflatable_utils

    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults: dict[str, Any] = function.__kwdefaults__  # type: ignore[assignment]
        defaults["initial_backoff"] = SHORTEST_WAIT_S
        if longest is not None:
            defaults["max_time"] = longest


def wait_for_own_reply() -> None:
    """Let the SuperNode in this process send replies until the one to its latest message is among them.

    It drops a message that did not arrive completely.
    """
    from flwr.supernode import start_client_internal as supernode

    pull, push = supernode._pull_and_store_message, supernode._push_messages
    latest, its_run = "", 0

    def pull_and_note(*, receive: Callable[[], Any], state: Any, object_store: Any, **more: Any) -> int | None:
        def note() -> Any:
            nonlocal latest, its_run
            received = receive()
            latest, its_run = (received[0].metadata.message_id, received[0].metadata.run_id) if received else ("", 0)
            return received

        found = pull(receive=note, state=state, object_store=object_store, **more)
        if found is None and object_store.get(latest) == b"":  # its content has not arrived, and will not
            drop_message(state, object_store, latest, its_run)
        return found

    def push_until_answered(*, send: Callable[..., Any], **more: Any) -> None:
        answered = set()

        def note(message: Any, *rest: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return send(message, *rest)

        while latest not in answered:
            push(send=note, **more)

    vars(supernode).update(_pull_and_store_message=pull_and_note, _push_messages=push_until_answered)


def drop_message(state: Any, object_store: Any, message: str, run: int) -> None:
    """Remove a message, and its task if the worker does not have it yet."""
    for task in state.get_tasks(run_ids=[run], statuses=["pending"]):
        state.finish_task(task.task_id, "failed", "its run ended before it had arrived")
    state.delete_messages(message_ids=[message])
    object_store.delete(message)


def refuse_redirects() -> None:
    """Let this process follow no redirects: a server could have it send requests to other machines of the site."""
    from flwr.supercore.protobuf.client import ProtobufClient

    start = ProtobufClient.__init__

    def start_without(self: ProtobufClient, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        self._client.follow_redirects = False

    ProtobufClient.__init__ = start_without  # type: ignore[method-assign]


def shorten_supernode_waits() -> None:
    """Let the SuperNode in this process look for messages and replies sooner."""
    from flwr.supernode import start_client_internal

    idle = IdleWait()

    def sleep(seconds: float) -> None:
        if seconds <= REPLY_WAIT_S:  # it has a message
            idle.restart()
            seconds = SHORTEST_WAIT_S
        idle.sleep(seconds)

    vars(start_client_internal)["time"] = SimpleNamespace(sleep=sleep)


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    refuse_redirects()
    shorten_object_waits()
    shorten_supernode_waits()
    wait_for_own_reply()
    flower_supernode()


if __name__ == "__main__":
    main()
