"""A node's worker with a stand-in for the connection to its server: what it answers, what it refuses, what it keeps."""

from __future__ import annotations

import faulthandler
import inspect
import io
import os
import ssl
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.start_client_internal import start_client_internal
from one_process import deploy, digests_in_process, engine_process, events_of

from fedbm.federation.deploy.certificates import make_authority, make_node, make_server
from fedbm.federation.deploy.flower import APP, explain_exit, is_own_app
from fedbm.federation.deploy.supervisor import environment
from fedbm.federation.node import worker as worker_module
from fedbm.federation.node.worker import Worker
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import CENSUS, REFUSED, SiteRefusal

NODE, RUN = 77, 5


class Link:
    """What a worker's connection reaches: the messages and objects that a SuperLink keeps for one node."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Message, Any]] = []
        self.objects: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.replies: list[str] = []
        self.app = OWN_APP
        self.ended = False  # the run has ended: nothing can be sent any more

    @property
    def connection(self) -> tuple[Any, ...]:
        run, bundle = SimpleNamespace(fab_hash="a hash"), lambda name, number: SimpleNamespace(content=self.app)
        objects = (self.pull, self.push, lambda number, name: self.confirmed.append(name))
        return (NODE, self.receive, self.send, lambda number: run, bundle, *objects)

    def put(self, message: Message, complete: bool = True) -> None:
        """Keep a message for the node, without its content if it is not *complete*."""
        message.metadata.__dict__["_run_id"] = RUN
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            if complete:
                self.objects |= {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
            self.waiting.append((message, get_object_tree(message)))

    def receive(self) -> tuple[Message, Any] | None:
        return self.waiting.pop(0) if self.waiting else None

    def pull(self, run: int, name: str) -> bytes:
        if name not in self.objects:
            raise ObjectUnavailableError(name)
        return self.objects.pop(name)

    def send(self, message: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        if self.ended:
            raise RunNotRunningException
        self.replies.append(message.metadata.message_id)
        return {item.object_id for item in iterate_object_tree(tree)}, "session"

    def push(self, run: int, session: str, name: str, content: bytes) -> None:
        self.objects[name] = content

    def reply(self) -> Envelope:
        whole = inflate_object_from_contents(self.replies.pop(), self.objects)
        self.objects.clear()
        assert isinstance(whole, Message)
        return from_records(whole.content)


@pytest.fixture
def site(tmp_path: Path) -> dict[str, Any]:
    return {"client": 0, "name": "a site", "data": "nowhere", "folder": str(tmp_path), "state": str(tmp_path / "state")}


@pytest.fixture
def link() -> Iterator[Link]:
    with engine_process():
        yield Link()


@pytest.fixture
def worker(link: Link, site: dict[str, Any]) -> Worker:
    return Worker(link.connection, site)


def refused(why: str) -> Message:
    return Message(to_records(Envelope({"why": why})), NODE, REFUSED, ttl=60)


def make_app(files: Mapping[str, str], app: str = APP) -> bytes:
    """Return an app as `flwr run` makes it."""
    return build_fab_from_files(
        {"pyproject.toml": app.encode(), **{name: code.encode() for name, code in files.items()}}
    )[0]


OWN_APP = make_app({})


def test_flower_yields_the_connection_that_a_worker_takes_apart() -> None:
    """A failure means that the installed Flower has changed."""
    names = "node_id,receive,send,get_run,get_fab,pull_object,push_object,confirm_message_received,"
    source = "".join(inspect.getsource(start_client_internal).split())
    assert f"({names})=conn" in source


def test_a_worker_answers_each_message_once(link: Link, worker: Worker, site: dict[str, Any]) -> None:
    assert not worker.serve_next()
    for number in range(3):
        link.put(refused(f"it is client {number}"))
        assert worker.serve_next()
        assert link.reply().body["code"] == "ok"
    told = [line["why"] for line in events_of(Path(site["state"]), "refused_by_server")]
    assert told == [f"it is client {number}" for number in range(3)]
    assert len(link.confirmed) == 3
    assert not worker.serve_next()


def test_a_message_that_never_arrives_as_a_whole_does_not_hold_up_the_next_one(
    link: Link, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(run: int, name: str) -> bytes:
        raise ObjectPullError(name, "the object could not be found.")

    broken = Link()
    broken.pull = pull  # type: ignore[method-assign]
    broken.put(refused("half of it"), complete=False)
    assert Worker(broken.connection, {}).serve_next()
    assert not broken.replies
    link.put(refused("all of it"))
    assert worker.serve_next()
    assert link.reply().body["code"] == "ok"


def test_a_run_that_ends_while_a_node_answers_does_not_end_the_node(link: Link, worker: Worker) -> None:
    link.ended = True
    link.put(refused("hello"))
    assert not worker.serve_next()
    link.ended = False
    link.put(refused("hello"))
    assert worker.serve_next()
    assert link.reply().body["code"] == "ok"


@pytest.mark.parametrize("forbidden", [False, True])  # True: a proxy, or the server, answers every question with 403
def test_a_worker_looks_soon_after_a_message_and_seldom_when_idle(
    forbidden: bool, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid() -> None:
        raise RunNotRunningException

    found: list[float] = []
    clock = iter(range(10_000))
    if forbidden:
        worker._receive = forbid

    def sleep(seconds: float) -> None:
        found.append(seconds)
        if len(found) == 40:
            raise KeyboardInterrupt

    stand_in = SimpleNamespace(sleep=sleep, monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(worker_module, "time", stand_in)
    with pytest.raises(KeyboardInterrupt):
        worker.serve()
    assert found[:3] == [0.1, 0.2, 0.3]
    assert found == sorted(found)
    assert found[-1] == 3


def test_code_that_the_server_sends_is_neither_installed_nor_run(
    link: Link, worker: Worker, site: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, trace = tmp_path / "flower", tmp_path / "trace"
    monkeypatch.setenv("FLWR_HOME", str(home))
    hostile = f"open({str(trace)!r}, 'w').write('it ran')\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n"
    page = APP.replace("fedbm.federation.node.worker:reply", "hostile:app")
    link.app = make_app({"hostile.py": hostile}, page)
    link.put(refused("hello"))
    assert worker.serve_next()
    body = link.reply().body
    assert (body["code"], body["name"]) == ("app", "a site")
    assert "it runs only its own version of fedbm" in str(SiteRefusal(body, ()))
    assert [line["code"] for line in events_of(Path(site["state"]), "refused")] == ["app"]
    assert not events_of(Path(site["state"]), "refused_by_server")
    assert not trace.exists()
    assert not home.exists()
    link.app = OWN_APP
    link.put(refused("hello"))  # the node serves its own app as before
    assert worker.serve_next()
    assert link.reply().body["code"] == "ok"


def test_only_the_description_of_this_version_without_any_code_is_the_own_app() -> None:
    assert is_own_app(OWN_APP)
    assert not is_own_app(make_app({"more.py": "print()"}))
    assert not is_own_app(make_app({}, APP.replace("fedbm.federation.node.worker:reply", "os:system")))
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


def test_a_worker_ends_itself_if_a_message_takes_longer_than_its_reply_is_kept() -> None:
    """The interpreter is held by one long call, so no other thread of it could end the process."""
    program = """
import re, sys
from types import SimpleNamespace
from fedbm.federation.node import worker as module

def hang(*arguments):
    re.match("(a*)*b", "a" * 40)  # takes hours, and releases the interpreter never

message = SimpleNamespace(metadata=SimpleNamespace(ttl=0.0, message_type="train", run_id=1))
module.pull_and_inflate_object_from_tree = lambda *arguments, **options: message
module.is_own_app = lambda bundle: True
module.reply = hang
nothing = lambda *arguments: SimpleNamespace(fab_hash="", content=b"")
receive = lambda: (message, SimpleNamespace(object_id="0"))
module.Worker((1, receive, nothing, nothing, nothing, nothing, nothing, nothing), {}).serve_next()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in hang" in done.stderr


@pytest.mark.parametrize("kind", ["query", "query.hello", "train.more"])
def test_a_message_of_an_unknown_type_is_refused(kind: str, link: Link, worker: Worker, site: dict[str, Any]) -> None:
    link.put(Message(to_records(Envelope({})), NODE, kind, ttl=60))
    assert worker.serve_next()
    assert link.reply().body["code"] == "app"
    assert [line["code"] for line in events_of(Path(site["state"]), "refused")] == ["app"]


@pytest.mark.parametrize(("kind", "ttl", "limit"), [(CENSUS, 86400, 7200), (REFUSED, 60, 60), (REFUSED, 1e9, 2592000)])
def test_a_worker_is_given_as_long_as_its_reply_is_kept(
    kind: str, ttl: float, limit: float, link: Link, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a census is kept for a day, but a worker that hangs does not keep the node so long."""
    given: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, exit: given.append(seconds))
    link.put(Message(to_records(Envelope({})), NODE, kind, ttl=ttl))
    assert worker.serve_next()
    assert given == [pytest.approx(limit)]


def usage() -> tuple[int, int]:
    """Return resident bytes and open files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_hundred_messages_need_no_more_memory_and_files_than_twenty(
    link: Link, tiny: dict[str, Any], tmp_path: Path
) -> None:
    """A site trains the same round over and over, with twenty other messages after each."""
    deployed = deploy(tmp_path, {**tiny, "clients": 1, "rounds": 3, "participation": 1.0, "batch": 32})
    [node] = deployed.grid.nodes.values()
    deployed.serve()
    train = next(request for request in node.requests if request.metadata.message_type == "train")
    worker = Worker(link.connection, node.config)
    found = []
    for count in range(201):
        link.put(Message(train.content, NODE, "train", ttl=600) if count % 20 == 0 else refused("it is client 7"))
        assert worker.serve_next()
        assert link.reply().body["code"] == "ok"
        if count in (20, 200):
            found.append(usage())
    assert len(worker._kept) == 1
    (memory, files), (memory_later, files_later) = found
    assert files_later <= files
    assert memory_later - memory < 8 * 2**20


def test_a_kept_run_computes_what_one_process_computes(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, {**tiny, "clients": 2, "rounds": 3, "participation": 1.0, "batch": 32})
    deployed.serve()
    assert all(len(node.kept) == 1 for node in deployed.grid.nodes.values())  # its model, between its messages
    states = [line["state"] for line in events_of(deployed.state, "round")]
    assert states == digests_in_process(deployed.plan)


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
    worker_module.refuse_redirects()
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever).start()
        client = ProtobufClient(f"http://127.0.0.1:{server.server_address[1]}")
        answer = client._client.post(f"{client._base_url}/fleet")
        client._client.close()
        server.shutdown()
    assert (answer.status_code, asked) == (307, ["/fleet"])


@pytest.mark.parametrize(("status", "why"), [(401, "did not accept its signature"), (409, "refused by the server")])
def test_a_worker_that_is_not_admitted_ends_and_shows_why(status: int, why: str, tmp_path: Path) -> None:
    """The server answers as a SuperLink to a wrong signature, or to a key that is not registered."""
    make_authority(tmp_path, "study")
    make_server(tmp_path, tmp_path, ["127.0.0.1"])
    make_node(tmp_path, "hospital-1")

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"code": 2004, "detail": "no such key"}')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        command = [sys.executable, "-m", "fedbm.federation.node.worker", f"127.0.0.1:{server.server_address[1]}", "{}"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False
        )
        server.shutdown()
    assert why in (explain_exit(done.stdout + done.stderr) or done.stderr)
