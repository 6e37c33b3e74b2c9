"""Roles at work with stand-ins for Flower's programs: what is started, said, followed and ended."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the flower extra")

from flwr.proto import control_pb2

from fedbm.cli import federation_tasks, main
from fedbm.errors import FedBMError
from fedbm.federation.deploy import flower, registration, roles, run_control
from fedbm.federation.deploy.certificates import make_authority
from fedbm.federation.deploy.federation_folders import create
from fedbm.federation.deploy.registration import Registered, find_registered, fingerprint
from fedbm.federation.deploy.run_control import find_end, give_shares, start_run
from fedbm.federation.deploy.settings_files import (
    NodeSettings,
    ServerSettings,
    all_folders,
    clear_refusal,
    read_settings,
    to_text,
    write_refusal,
)
from fedbm.federation.deploy.supervisor import Child, find_marked, running

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="marks are found in /proc")

STAY = "time.sleep(600)"
CALL_CONTROL = flower.call_control

# answers GET /health, over TLS with a certificate of its folder where it was given one
SERVE = """
import ssl
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *words):
        pass

server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health)
if "--ssl-certfile" in sys.argv:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("server.pem", "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""

WORKER = """
known = json.loads(memory.read_text())
if known["refuse"]:
    memory.write_text(json.dumps(known | {"refuse": known["refuse"] - 1}))
    raise SystemExit("[code: 2004] Failed to activate SuperNode.")
print("the server has admitted this node", flush=True)
time.sleep(600)
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins in the place of Flower's programs; what the SuperLink remembers, and how often it refuses a node."""
    path = tmp_path / "memory.json"
    path.write_text(json.dumps({"keys": [], "gone": [], "run": None, "refuse": 0}))
    head = f"#!{sys.executable} -S\nimport json, sys, time\nfrom pathlib import Path\nmemory = Path({str(path)!r})\n"
    for name, program in {"flower-superlink": SERVE, "server.superexec": STAY, "node.worker": WORKER}.items():
        (tmp_path / name).write_text(head + textwrap.dedent(program))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(flower, "tool", lambda name: str(tmp_path / name))
    monkeypatch.setattr(flower, "module", lambda name: [str(tmp_path / name)])
    monkeypatch.setattr(roles, "check_server", lambda node, authority: "server: reached")
    for module in (run_control, registration):
        monkeypatch.setattr(module, "call_control", lambda *place, **fields: answer_control(path, *place, **fields))
    return path


def answer_control(memory: Path, folder: Path, task: str, **fields: Any) -> Any:
    """What the SuperLink's control interface answers."""
    known, name = json.loads(memory.read_text()), task.title().replace("-", "")
    request, answer = getattr(control_pb2, f"{name}Request")(**fields), getattr(control_pb2, f"{name}Response")()
    if task == "register-node":
        assert request.public_key.decode() not in known["keys"]
        known["keys"].append(request.public_key.decode())
    elif task == "unregister-node":
        known["gone"].append(request.node_id)
    elif task == "list-nodes":
        for number, key in enumerate(known["keys"], 1):
            status = "unregistered" if number in known["gone"] else "registered"
            answer.nodes_info.add(node_id=number, public_key=key.encode(), status=status)
    elif task == "start-run":
        answer.run_id = 77
        assert flower.is_own_app(request.fab.content)
        known["run"] = ["running", "", ""]
        known["asked"] = {key: value.string for key, value in request.override_config.items()}
    elif task == "list-runs" and known["run"]:
        status = answer.run_dict[77].status
        status.status, status.sub_status, status.details = known["run"]
    elif task == "stop-run":
        known["run"] = ["finished", "stopped", ""]
    memory.write_text(json.dumps(known))
    return answer


@pytest.fixture
def study(memory: Path, tmp_path: Path) -> Path:
    create(tmp_path / "study", nodes=2, link_port=18000 + os.getpid() % 5000 * 5)
    run = tmp_path / "study" / "server" / "run.toml"
    run.write_text(run.read_text().replace('name = "digits"', 'name = "digits"\nsize = 16'))
    give_shares(tmp_path / "study", run)
    return tmp_path / "study"


def quiet(words: object) -> None:
    pass


def run_server(
    home: Path, report: Callable[[str], None] = quiet, looks: int = 1, look: Callable[[int], object] = quiet
) -> None:
    """Run the server until *look* was called so often, with numbers from 0."""
    watch(roles.run_server(home, report), report, looks, look)


def run_node(
    home: Path, report: Callable[[str], None] = quiet, looks: int = 1, look: Callable[[int], object] = quiet
) -> None:
    watch(roles.run_node(home, "", report), report, looks, look)


def watch(
    role: AbstractContextManager[list[Child]], report: Callable[[str], None], looks: int, look: Callable[[int], object]
) -> None:
    with role as children:
        for number, _ in enumerate(islice(roles.watch(children, report), looks)):
            look(number)


def nothing_is_left(study: Path) -> bool:
    return all(not find_marked(folder) and not running(folder) for folder in all_folders(study))


def change(memory: Path, **values: object) -> None:
    memory.write_text(json.dumps(json.loads(memory.read_text()) | values))


def test_a_partition_replaces_shares_but_never_a_sites_own_images(study: Path) -> None:
    run, manifest = study / "server" / "run.toml", study / "hospital-1" / "data" / "manifest.json"
    run.write_text(run.read_text().replace("size = 16", "size = 20"))
    give_shares(study, run)
    assert json.loads(manifest.read_text())["shape"][1:] == [20, 20, 1]
    shutil.rmtree(manifest.parent)
    scan = manifest.parent / "cyst" / "scan.png"
    scan.parent.mkdir(parents=True)
    scan.write_bytes(b"pixels")
    with pytest.raises(FedBMError, match="data exists already and is not overwritten"):
        give_shares(study, run)
    assert scan.read_bytes() == b"pixels"


def test_a_server_registers_its_nodes_once_and_takes_off_those_that_left(study: Path, memory: Path) -> None:
    said: list[str] = []
    home = study / "server"
    run_server(home, said.append)
    assert said[-1].startswith("ready: nodes connect to 127.0.0.1:")
    assert len(json.loads(memory.read_text())["keys"]) == 2
    run_server(home, said.append)  # it knows them: nothing changes
    assert len(json.loads(memory.read_text())["keys"]) == 2
    with_nodes(home, ",hospital-2")
    run_server(home, said.append)
    assert json.loads(memory.read_text())["gone"] == [1]
    assert [(node.node, node.client, node.name) for node in registered(home)] == [("2", 1, "hospital-2")]
    with_nodes(home, "hospital-1,hospital-2")
    with pytest.raises(FedBMError, match="the key of hospital-1 was removed before"):
        run_server(home, said.append)
    assert nothing_is_left(study)


def registered(home: Path) -> list[Registered]:
    return list(find_registered(home, read_settings(home, ServerSettings)).values())


def with_nodes(home: Path, nodes: str) -> None:
    settings = read_settings(home, ServerSettings)
    (home / "server.toml").write_text(to_text(dataclasses.replace(settings, nodes=nodes)))


def test_a_server_knows_which_node_id_belongs_to_which_key(study: Path, memory: Path) -> None:
    home = study / "server"
    assert registered(home) == []
    for _ in range(2):  # at every start the same
        run_server(home)
        names = ("hospital-1", "hospital-2")
        keys = [fingerprint((study / name / "node.pub").read_text()) for name in names]
        assert registered(home) == [Registered(0, names[0], "1", keys[0]), Registered(1, names[1], "2", keys[1])]


def test_two_nodes_with_one_key_are_refused(study: Path) -> None:
    shutil.copyfile(study / "server" / "nodes" / "hospital-1.pub", study / "server" / "nodes" / "hospital-2.pub")
    with pytest.raises(FedBMError, match="two nodes have the same public key"):
        run_server(study / "server")


def test_a_copied_server_does_not_change_the_nodes_of_the_one_that_runs(study: Path, memory: Path) -> None:
    copy = shutil.copytree(study, study.parent / "copy") / "server"
    with_nodes(copy, "hospital-1")
    with roles.run_server(study / "server", quiet), pytest.raises(FedBMError, match="the server needs port"):
        run_server(copy)
    assert json.loads(memory.read_text())["gone"] == []


def test_a_run_that_lost_its_server_app_is_ended_at_the_next_start(study: Path, memory: Path) -> None:
    change(memory, run=["running", "", ""])
    run_server(study / "server")
    assert json.loads(memory.read_text())["run"] == ["finished", "stopped", ""]


@pytest.mark.parametrize(("cores", "each"), [(1, 1), (2, 1), (8, 2)])
def test_nodes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, cores: int, each: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    nodes = [NodeSettings(client=0), NodeSettings(client=1, threads=5), NodeSettings(client=2)]
    assert [node.threads for node in roles.share_threads(nodes)] == [each, 5, each]


def test_a_role_ends_when_one_of_its_programs_dies(study: Path) -> None:
    home = study / "server"
    with pytest.raises(FedBMError, match="superlink of server has died; its log is .*superlink.log"):
        run_server(home, looks=60, look=lambda number: number or os.kill(running(home)["superlink"], signal.SIGKILL))
    assert nothing_is_left(study)


def test_a_node_ends_with_its_worker(study: Path) -> None:
    home = study / "hospital-1"
    why = "worker of hospital-1 has died; .* machine's memory is too small .* a service restarts by itself"
    with pytest.raises(FedBMError, match=why):
        run_node(home, looks=60, look=lambda number: number or os.kill(running(home)["worker"], signal.SIGKILL))
    assert nothing_is_left(study)


def test_a_node_that_is_not_admitted_ends_with_the_causes(study: Path, memory: Path) -> None:
    change(memory, refuse=1)
    with pytest.raises(FedBMError, match="refused by the server: its key is not registered, or still connected"):
        run_node(study / "hospital-1")
    assert nothing_is_left(study)
    said: list[str] = []
    run_node(study / "hospital-1", said.append)  # as its service does
    assert said[-1] == "ready: the server accepts the key of hospital-1 (client 0); waiting for a run"


def test_a_node_that_the_server_refuses_says_so_until_it_is_taken_in(study: Path) -> None:
    said: list[str] = []
    home = study / "hospital-1"
    write_refusal(home / "state", "left by an earlier start")

    def look(number: int) -> None:
        if number == 1:
            write_refusal(home / "state", "it is client 7")
        if number == 2:
            assert main(["federation", "status", str(home)]) == 0
            clear_refusal(home / "state")

    run_node(home, said.append, 4, look)
    assert said[-2:] == [
        "hospital-1: not admitted: it is client 7",
        "hospital-1: the server admitted it",
    ]
    assert not any("earlier start" in words for words in said)


def test_a_program_is_healthy_when_its_certificate_is_of_the_authority(study: Path) -> None:
    home = study / "server"
    port = read_settings(home, ServerSettings).link_port
    assert not flower.is_healthy(port, home / "ca.crt")

    with roles.run_server(home, quiet):
        assert flower.is_healthy(port, home / "ca.crt")
        make_authority(study / "other", "another")
        assert not flower.is_healthy(port, study / "other" / "ca.crt")


def test_a_worker_that_is_not_let_in_is_not_ready(study: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = memory.parent / "node.worker"
    program.write_text(program.read_text().replace("the server has admitted", "nobody has admitted"))
    monkeypatch.setattr(roles, "START_SECONDS", 3.0)
    with pytest.raises(FedBMError, match="worker did not start: nobody has admitted this node; its log is"):
        run_node(study / "hospital-1")
    assert nothing_is_left(study)


def test_a_run_is_begun_once_and_followed_to_its_end(
    study: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, file = study / "server", study / "server" / "run.toml"
    with pytest.raises(FedBMError, match="is not up: 'fedbm federation server"):
        start_run(home, file)
    with roles.run_all(study, quiet):
        run = start_run(home, file)
        assert json.loads(memory.read_text())["asked"] == {"config": str(file), "folder": str(home)}
        with pytest.raises(FedBMError, match="another run is active"):
            start_run(home, file)
        assert find_end(home, run) is None
        change(memory, run=["finished", "failed", "ServerApp failed with exception: no node came"])
        assert find_end(home, run).details.endswith("no node came")

        def busy(*arguments: Any) -> None:
            raise FedBMError("the SuperLink did not answer")

        monkeypatch.setattr(run_control, "call_control", busy)
        assert find_end(home, run) is None  # a SuperLink that is busy for a while is not a failure
    with pytest.raises(FedBMError, match="is not up"):
        find_end(home, run)
    assert nothing_is_left(study)


def test_the_control_interface_is_asked_over_tls(study: Path) -> None:
    """The stand-in for the SuperLink answers GET /health only."""
    home = study / "server"
    with (
        roles.run_server(home, quiet),
        pytest.raises(FedBMError, match="the SuperLink refused list-runs: it answered 501"),
    ):
        CALL_CONTROL(home, "list-runs")
    with pytest.raises(FedBMError, match="the SuperLink did not answer list-runs: .*refused"):
        CALL_CONTROL(home, "list-runs")


def test_up_plays_a_run_and_ends_everything(
    study: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = iter(["failed", "completed"])
    monkeypatch.setattr("fedbm.cli.federation_progress.StatusLog.__call__", lambda self, run: end())

    def end() -> None:
        if json.loads(memory.read_text())["run"][0] == "running":
            change(memory, run=["finished", next(ends), ""])

    assert main(["federation", "up", str(study)]) == 2
    found = capsys.readouterr()
    assert "ready: 2 nodes are connected" in found.out
    assert "the run was not completed: failed; the same command" in found.err
    assert nothing_is_left(study)
    assert main(["federation", "up", str(study)]) == 0
    assert nothing_is_left(study)


def test_ctrl_c_leaves_nothing(
    study: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(federation_tasks, "find_end", lambda home, run: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["federation", "up", str(study)]) == 130
    assert "interrupted; run the same command again to continue" in capsys.readouterr().err
    assert nothing_is_left(study)
