"""A node's worker against the Runtime API of a real SuperNode: what it answers, what it refuses, what it keeps."""

from __future__ import annotations

import faulthandler
import io
import os
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeState, NodeStateFactory
from flwr.supernode.servicer.runtime import runtime_handlers
from one_process import deploy, digests_in_process, engine_process, events_of

from fedbm.federation.deploy.flower import APP, is_own_app
from fedbm.federation.node import client_app
from fedbm.federation.node.supernode import drop_message
from fedbm.federation.node.worker import Worker
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import CENSUS, REFUSED, SiteRefusal

SECRET = b"a secret of this test"
OWN_APP = build_fab_from_files({"pyproject.toml": APP.encode()})[0]
RUN, NODE = 5, 9


class SuperNode:
    """The state of a SuperNode, and its Runtime API on a loopback port."""

    def __init__(self, node_config: Mapping[str, Any]) -> None:
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state: NodeState = factory.state()
        self.state.set_node_id(NODE)
        self.config = dict(node_config)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        app = create_app(factory, SECRET)
        self.server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="error"))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def receive(
        self, message: Message, app: bytes = OWN_APP, kind: str = TaskType.CLIENT_APP, complete: bool = True
    ) -> str:
        """Do what a SuperNode does with a message that its server sent, and return the message's id."""
        run = Run.create_empty(RUN)
        run.fab_hash = self.state.store_fab(Fab("", app, {}))
        self.state.store_run(run)
        self.state.set_run_series_context(0, Context(RUN, NODE, self.config, RecordDict(), {}))
        self.state.create_task(kind, RUN, run.fab_hash)
        message.metadata.__dict__["_run_id"] = RUN
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            self.state.object_store.preregister(RUN, get_object_tree(message))
            for name, item in get_all_nested_objects(message).items() if complete else ():
                self.state.object_store.put(name, item.deflate())
            self.state.store_message(message)
        return message.metadata.message_id

    def reply(self) -> Envelope:
        """Take the reply, as a SuperNode does before it sends it."""
        [found] = self.state.get_messages_legacy(is_reply=True)
        name, store = found.metadata.message_id, self.state.object_store
        contents = {
            tree.object_id: store.get(tree.object_id) for tree in iterate_object_tree(store.get_object_tree(name))
        }
        whole = inflate_object_from_contents(name, contents)
        self.state.delete_messages(message_ids=[name, found.metadata.reply_to_message_id])
        store.delete(name)
        assert isinstance(whole, Message)
        return from_records(whole.content)


@pytest.fixture
def site(tmp_path: Path) -> dict[str, Any]:
    return {"client": 0, "name": "a site", "data": "nowhere", "folder": str(tmp_path), "state": str(tmp_path / "state")}


@pytest.fixture
def supernode(site: dict[str, Any]) -> Iterator[SuperNode]:
    made = SuperNode(site)
    with engine_process():
        yield made
    made.close()


@pytest.fixture
def worker(supernode: SuperNode) -> Worker:
    return Worker(f"127.0.0.1:{supernode.port}", SECRET)


def refused(why: str) -> Message:
    return Message(to_records(Envelope({"why": why})), NODE, REFUSED, ttl=60)


def make_app(files: Mapping[str, str], app: str = APP) -> bytes:
    """Return an app as `flwr run` makes it."""
    return build_fab_from_files(
        {"pyproject.toml": app.encode(), **{name: code.encode() for name, code in files.items()}}
    )[0]


def test_a_worker_answers_its_own_app_and_closes_its_connections(
    supernode: SuperNode, worker: Worker, site: dict[str, Any]
) -> None:
    assert not worker.serve_next()
    files = []
    for number in range(9):
        supernode.receive(refused(f"it is client {number}"))
        assert worker.serve_next()
        assert supernode.reply().body["code"] == "ok"
        files.append(usage()[1] if Path("/proc/self/statm").exists() else 0)
    told = [line["why"] for line in events_of(Path(site["state"]), "refused_by_server")]
    assert told == [f"it is client {number}" for number in range(9)]
    assert files[8] - files[0] < 8  # one that stays open per message would be 8; the server closes a few late
    assert not worker.serve_next()


@pytest.mark.parametrize("taken", [True, False], ids=["in the worker", "not yet in the worker"])
def test_a_message_whose_run_ended_before_it_had_arrived_does_not_hold_up_the_next_one(
    taken: bool, supernode: SuperNode, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = function.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "initial_backoff", 0.01)
    message = supernode.receive(refused("half of it"), complete=False)
    with ThreadPoolExecutor() as pool:
        if taken:
            served = pool.submit(worker.serve_next)
            while not supernode.state.get_tasks(statuses=["running"]):
                assert not served.done()
                time.sleep(0.01)
            time.sleep(0.1)  # it looks for the rest
        drop_message(supernode.state, supernode.state.object_store, message, RUN)
        if taken:
            assert served.result(20)
    assert not worker.serve_next()
    assert [task.status.sub_status for task in supernode.state.get_tasks()] == ["failed"]
    supernode.receive(refused("a whole one"))
    assert worker.serve_next()
    assert supernode.reply().body["code"] == "ok"


@pytest.mark.parametrize("kind", [TaskType.CLIENT_APP, TaskType.AGENT_APP])
def test_code_that_the_server_sends_is_neither_installed_nor_run(
    kind: str,
    supernode: SuperNode,
    worker: Worker,
    site: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, trace = tmp_path / "flower", tmp_path / "trace"
    monkeypatch.setenv("FLWR_HOME", str(home))
    hostile = f"open({str(trace)!r}, 'w').write('it ran')\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n"
    page = APP.replace("fedbm.federation.node.client_app:app", "hostile:app")
    supernode.receive(refused("hello"), make_app({"hostile.py": hostile}, page), kind)
    assert worker.serve_next()
    body = supernode.reply().body
    assert (body["code"], body["name"]) == ("app", "a site")
    assert "it runs only its own version of fedbm" in str(SiteRefusal(body, ()))
    assert [line["code"] for line in events_of(Path(site["state"]), "refused")] == ["app"]
    assert not events_of(Path(site["state"]), "refused_by_server")
    assert not trace.exists()
    assert not home.exists()
    supernode.receive(refused("hello"))  # the node serves its own app as before
    assert worker.serve_next()
    assert supernode.reply().body["code"] == "ok"


def test_only_the_description_of_this_version_without_any_code_is_the_own_app() -> None:
    assert is_own_app(OWN_APP)
    assert not is_own_app(make_app({"more.py": "print()"}))
    assert not is_own_app(make_app({}, APP.replace("fedbm.federation.node.client_app:app", "os:system")))
    version = tomllib.loads(APP)["project"]["version"]
    assert not is_own_app(make_app({}, APP.replace(f'version = "{version}"', 'version = "99.0"')))
    assert not is_own_app(b"no bundle")
    large = io.BytesIO()  # small until a program unpacks it
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("pyproject.toml", APP)
        bomb.writestr(".info/CONTENT", "0" * 100_000)
    assert not is_own_app(large.getvalue())
    stored = io.BytesIO()  # a site's zlib may compress in another way
    with zipfile.ZipFile(io.BytesIO(OWN_APP)) as before, zipfile.ZipFile(stored, "w") as after:
        for name in before.namelist():
            after.writestr(name, before.read(name))
    assert is_own_app(stored.getvalue())


def test_a_program_without_the_secret_gets_no_task(supernode: SuperNode) -> None:
    supernode.receive(refused("hello"))
    stranger = Worker(f"127.0.0.1:{supernode.port}", b"a guess")
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        stranger.serve_next()


def test_a_worker_ends_itself_if_a_message_takes_longer_than_its_reply_is_kept() -> None:
    """The interpreter is held by one long call, so no other thread of it could end the process."""
    program = """
import re, sys
from types import SimpleNamespace
from fedbm.federation.node import worker as module

def hang(message, context, own_app):
    re.match("(a*)*b", "a" * 40)  # takes hours, and releases the interpreter never

client = SimpleNamespace(AcquireTask=lambda request: SimpleNamespace(token="t"))
message = SimpleNamespace(metadata=SimpleNamespace(ttl=0.0, message_type="train"))
module.RuntimeHttpClient.from_server_address = lambda **words: client
module.HeartbeatSender = lambda beat: SimpleNamespace(start=lambda: None)
module.pull_task_input = lambda client: (message, None, None, SimpleNamespace(content=b""))
module.reply = hang
module.Worker("nowhere", b"secret").serve_next()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in hang" in done.stderr


@pytest.mark.parametrize("kind", ["query", "query.hello", "train.more"])
def test_a_message_of_an_unknown_type_is_refused(
    kind: str, supernode: SuperNode, worker: Worker, site: dict[str, Any]
) -> None:
    supernode.receive(Message(to_records(Envelope({})), NODE, kind, ttl=60))
    assert worker.serve_next()
    assert supernode.reply().body["code"] == "app"
    assert [line["code"] for line in events_of(Path(site["state"]), "refused")] == ["app"]


@pytest.mark.parametrize(("kind", "ttl", "limit"), [(CENSUS, 86400, 7200), (REFUSED, 60, 60), (REFUSED, 1e9, 2592000)])
def test_a_worker_is_given_as_long_as_its_reply_is_kept(
    kind: str, ttl: float, limit: float, supernode: SuperNode, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a census is kept for a day, but a worker that hangs does not keep the node so long."""
    given: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, exit: given.append(seconds))
    supernode.receive(Message(to_records(Envelope({})), NODE, kind, ttl=ttl))
    assert worker.serve_next()
    assert given == [pytest.approx(limit)]


def usage() -> tuple[int, int]:
    """Return resident bytes and open files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


class Direct:
    """The Runtime API without HTTP: the SuperNode's own handlers."""

    def __init__(self, supernode: SuperNode) -> None:
        self.state = supernode.state
        self.task: Any = None

    def connect(self, **words: Any) -> Direct:
        return self

    def close(self) -> None:
        pass

    def AcquireTask(self, request: Any) -> Any:
        found = runtime_handlers.acquire_task(request, self.state)
        self.task = found.task
        return found

    def SendTaskHeartbeat(self, request: Any) -> Any:
        return SimpleNamespace(success=True)

    def __getattr__(self, name: str) -> Any:
        handler = getattr(runtime_handlers, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        return lambda request: handler(request, self.state, self.task)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_hundred_messages_need_no_more_memory_and_files_than_twenty(
    supernode: SuperNode, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site trains the same round over and over, with twenty other messages after each."""
    monkeypatch.setattr(RuntimeHttpClient, "from_server_address", Direct(supernode).connect)
    worker = Worker("nowhere", SECRET)
    deployed = deploy(tmp_path, {**tiny, "clients": 1, "rounds": 3, "participation": 1.0, "batch": 32})
    [node] = deployed.grid.nodes.values()
    deployed.serve()
    train = next(request for request in node.requests if request.metadata.message_type == "train")
    supernode.config = node.config
    found = []
    for count in range(201):
        one = Message(train.content, NODE, "train", ttl=600) if count % 20 == 0 else refused("it is client 7")
        supernode.receive(one)
        assert worker.serve_next()
        assert supernode.reply().body["code"] == "ok"
        if count in (20, 200):
            found.append(usage())
    assert len(client_app.KEPT) == 1
    (memory, files), (memory_later, files_later) = found
    assert files_later <= files
    assert memory_later - memory < 8 * 2**20


def test_a_kept_run_computes_what_one_process_computes(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, {**tiny, "clients": 2, "rounds": 3, "participation": 1.0, "batch": 32})
    deployed.serve()
    assert len(client_app.KEPT) == 2  # every node kept its model between its messages
    states = [line["state"] for line in events_of(deployed.state, "round")]
    assert states == digests_in_process(deployed.plan)
