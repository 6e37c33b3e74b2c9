"""Flower's waits, which this package shortens. A failure means that the installed Flower has changed."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from flwr.supercore.inflatable import inflatable_protobuf_utils, inflatable_utils
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal

from fedbm.errors import FedBMError
from fedbm.federation.node import supernode
from fedbm.federation.node.worker import MESSAGE_DROPPED
from fedbm.federation.protocol.flower_records import limit_messages


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept, without sleeping; a second passes at every look at the clock."""
    found: list[float] = []
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    return found


def test_the_supernode_sleeps_where_this_package_expects_it() -> None:
    source = inspect.getsource(start_client_internal)
    assert re.findall(r"time\.(\w+\([\d.]*\))", source) == ["sleep(3)", "sleep(0.5)", "sleep(0.5)"]


def test_the_supernode_looks_soon_after_a_message_and_seldom_when_idle(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_client_internal, "time", time)
    supernode.shorten_supernode_waits()
    start_client_internal.time.sleep(0.5)  # waits for its app
    for _ in range(40):
        start_client_internal.time.sleep(3)
    assert slept[:3] == [0.1, 0.2, 0.3]
    assert slept == sorted(slept)
    assert slept[-1] == 3


def test_the_supernode_waits_for_the_reply_to_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply to a message of a run that ended is sent first; Flower would then look for messages only."""
    replies, sent = [["old"], ["census"]], []

    def pull(*, receive: Callable[[], Any], run: int, **stores: Any) -> int:
        receive()
        return run

    def push(*, send: Callable[..., Any], state: str) -> None:
        for name in replies.pop(0):
            send(SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)), state)

    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", pull)
    monkeypatch.setattr(start_client_internal, "_push_messages", push)
    supernode.wait_for_own_reply()
    message = SimpleNamespace(metadata=SimpleNamespace(message_id="census", run_id=3))
    stores = {"state": None, "object_store": {}}
    assert start_client_internal._pull_and_store_message(receive=lambda: (message, None), run=3, **stores) == 3
    start_client_internal._push_messages(
        send=lambda message, state: sent.append((message.metadata.reply_to_message_id, state)), state="state"
    )
    assert sent == [("old", "state"), ("census", "state")]


@pytest.mark.parametrize(
    ("found", "content", "dropped"), [(None, b"", True), (None, b"all", False), (None, None, False), (3, b"", False)]
)
def test_a_message_that_did_not_arrive_completely_is_dropped(
    found: int | None, content: bytes | None, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(*, receive: Callable[[], Any], **stores: Any) -> int | None:
        receive()
        return found

    drops: list[tuple[Any, ...]] = []
    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", pull)
    monkeypatch.setattr(start_client_internal, "_push_messages", None)
    monkeypatch.setattr(supernode, "drop_message", lambda *arguments: drops.append(arguments))
    supernode.wait_for_own_reply()
    message = SimpleNamespace(metadata=SimpleNamespace(message_id="train", run_id=3))
    objects = {"train": content}
    start_client_internal._pull_and_store_message(receive=lambda: (message, None), state="state", object_store=objects)
    assert drops == ([("state", objects, "train", 3)] if dropped else [])


def test_the_supernode_calls_what_this_package_wraps() -> None:
    loop = inspect.getsource(start_client_internal.start_client_internal)
    assert "run_id = _pull_and_store_message(\n                state=state," in loop
    assert "receive=receive," in loop
    assert "_push_messages(\n                state=state," in loop
    assert "send=send," in loop
    assert "if run_id is None:" in loop, "the push stage is skipped without a message"
    assert "object_store=store," in loop
    pulling = inspect.getsource(inflatable_protobuf_utils.make_pull_object_fn_protobuf)
    assert f'raise ObjectPullError(object_id, "the object {MESSAGE_DROPPED}.")' in pulling


def test_a_missing_object_is_looked_for_soon(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = function.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "initial_backoff", defaults["initial_backoff"])
    supernode.shorten_object_waits()
    waits: list[float] = []
    monkeypatch.setattr("threading.Event.wait", lambda event, timeout=None: waits.append(timeout) or True)
    tries = iter([False, True])

    def pull(name: str) -> bytes:
        if next(tries):
            return b"content"
        raise inflatable_utils.ObjectUnavailableError(name)

    assert inflatable_utils.pull_objects(["a"], pull) == {"a": b"content"}
    assert any(wait is not None and 0.08 <= wait <= 0.12 for wait in waits)


def test_a_message_that_is_too_large_is_not_pulled_to_its_end() -> None:
    assert "= pull_objects(" in inspect.getsource(http_grid.HttpGrid.pull_messages)
    limit_messages(1000)
    pulled: list[str] = []

    def pull(name: str) -> bytes:
        pulled.append(name)
        return bytes(300)

    assert len(http_grid.pull_objects(["a", "b", "c"], pull)) == 3
    with pytest.raises(FedBMError, match="its message has more than 1,000 bytes, the most that this run needs"):
        http_grid.pull_objects([str(number) for number in range(1000)], pull)
    assert len(pulled) < 500


def test_a_node_sends_nothing_to_where_its_server_redirects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(307)
            self.send_header("Location", "/internal")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setattr(ProtobufClient, "__init__", ProtobufClient.__init__)
    supernode.refuse_redirects()
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever).start()
        client = ProtobufClient(f"http://127.0.0.1:{server.server_address[1]}")
        answer = client._client.post(f"{client._base_url}/fleet")
        client._client.close()
        server.shutdown()
    assert (answer.status_code, asked) == (307, ["/fleet"])
