"""Who is not let in, and what reaches the server from outside: every refusal with its message and status."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from deployment import NODES, Deployment, free_ports, pids_of, ready, wait_for

from fedbm.federation.deploy import certificates
from fedbm.federation.deploy.federation_folders import render
from fedbm.federation.deploy.flower import call_control, tool
from fedbm.federation.deploy.registration import Registered, find_registered, fingerprint
from fedbm.federation.deploy.settings_files import NodeSettings, ServerSettings, read_settings, to_text
from fedbm.federation.deploy.supervisor import end_marked, environment

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("admission")) as made:
        ready([made.start("server", made.folder)])
        ready([made.start("node", made.folder / NODES[0])])
        yield made


def stranger(study: Deployment, tmp_path: Path, *words: str, seconds: float = 120) -> tuple[int | None, str]:
    """A SuperNode started by hand: its exit status, or None if it had to be stopped, and what it said."""
    command = [tool("flower-supernode"), "--superlink", f"127.0.0.1:{study.port}", "--port", str(free_ports(1)), *words]
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it starts other Flower programs
    out, env = tmp_path / "stranger.out", {**environment(tmp_path), "PATH": tools}
    with out.open("w") as stream:
        made = subprocess.Popen(command, stdout=stream, stderr=stream, env=env, cwd=tmp_path)
    try:
        code = made.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    end_marked(tmp_path)
    made.wait(30)
    return code, out.read_text()


def nodes_of(study: Deployment) -> list[Registered]:
    return list(find_registered(study.home, read_settings(study.home, ServerSettings)).values())


def online(study: Deployment) -> list[str]:
    nodes = call_control(study.home, "list-nodes").nodes_info
    return [str(node.node_id) for node in nodes if node.status == "online"]


def node_says(study: Deployment, folder: Path) -> tuple[int, str]:
    done = study.fedbm("node", folder, "--data", "digits", check=False)
    return done.returncode, done.stderr


def copy_of(study: Deployment, tmp_path: Path) -> Path:
    """The second hospital's folder, to be spoilt."""
    folder = tmp_path / "copy"
    shutil.copytree(study.folder / NODES[1], folder)
    return folder


def test_a_server_of_another_authority_is_not_trusted(study: Deployment, tmp_path: Path) -> None:
    folder = copy_of(study, tmp_path)
    certificates.make_authority(tmp_path / "other", "other")
    shutil.copyfile(tmp_path / "other" / "ca.crt", folder / "ca.crt")
    code, said = node_says(study, folder)
    assert code == 2
    assert "unable to get local issuer certificate" in said
    code, said = stranger(
        study,
        tmp_path,
        "--root-certificates",
        str(folder / "ca.crt"),
        "--auth-supernode-private-key",
        str(folder / "node.key"),
    )
    assert (code, "CERTIFICATE_VERIFY_FAILED" in said) == (1, True)


def test_an_unknown_key_is_refused(study: Deployment, tmp_path: Path) -> None:
    certificates.make_node(tmp_path, "stranger")
    before = online(study)
    code, said = stranger(
        study,
        tmp_path,
        "--root-certificates",
        str(study.home / "ca.crt"),
        "--auth-supernode-private-key",
        str(tmp_path / "node.key"),
    )
    assert (code, "Failed to activate SuperNode" in said) == (1, True)
    assert online(study) == before


def test_no_key_is_refused(study: Deployment, tmp_path: Path) -> None:
    before = online(study)
    code, said = stranger(study, tmp_path, "--root-certificates", str(study.home / "ca.crt"))
    assert (code, "SuperNode authentication is enabled" in said) == (1, True)
    assert online(study) == before
    folder = copy_of(study, tmp_path)
    (folder / "node.key").unlink()
    code, said = node_says(study, folder)
    assert (code, "No such file" in said) == (2, True)


def test_plaintext_reaches_nothing(study: Deployment, tmp_path: Path) -> None:
    before = online(study)
    code, said = stranger(study, tmp_path, "--insecure", seconds=30)
    assert code is None  # it tries again and again
    assert "SuperNode ID" not in said
    assert online(study) == before
    plain = http.client.HTTPConnection("127.0.0.1", study.port, timeout=10)
    plain.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()


def test_a_second_node_with_the_same_key_is_refused(study: Deployment, tmp_path: Path) -> None:
    first = study.folder / NODES[0]
    before = online(study)
    code, said = stranger(
        study,
        tmp_path,
        "--root-certificates",
        str(first / "ca.crt"),
        "--auth-supernode-private-key",
        str(first / "node.key"),
    )
    assert (code, "Failed to activate SuperNode" in said) == (1, True)
    assert online(study) == before
    again = study.fedbm("node", first, "--data", "digits", check=False)  # on the same machine: not even started
    assert (again.returncode, "is in use" in again.stderr) == (2, True)


def test_a_key_that_is_taken_off_is_refused_from_then_on(tmp_path: Path) -> None:
    with Deployment(tmp_path) as study:
        server = study.start("server", study.folder)
        ready([server])
        study.fedbm("stop", study.home)
        server.wait(30)
        settings = read_settings(study.home, ServerSettings)
        text = to_text(ServerSettings(settings.host, settings.port, settings.link_port, ",".join(NODES[:2])))
        (study.home / "server.toml").write_text(text)
        ready([study.start("server", study.folder)])
        folder = study.folder / NODES[2]
        code, said = stranger(
            study,
            tmp_path,
            "--root-certificates",
            str(folder / "ca.crt"),
            "--auth-supernode-private-key",
            str(folder / "node.key"),
        )
        assert (code, "Failed to activate SuperNode" in said) == (1, True)


def test_a_hospital_cannot_pretend_to_be_another(tmp_path: Path) -> None:
    """The third hospital claims the second's number and name, and is there before it."""
    with Deployment(tmp_path, "fedavg", rounds=2, min_updates=2, deadline=60) as study:
        ready([study.start("server", study.folder)])
        first, second, third = (study.folder / name for name in NODES)
        settings = read_settings(third, NodeSettings)
        (third / "node.toml").write_text(to_text(replace(settings, client=1, name=NODES[1])))
        ready([study.start("node", folder) for folder in (first, third)])
        study.fedbm("run", study.folder, study.file, "--detach")
        status = study.until(lambda s: any("refused" in node["state"] for node in s.get("nodes", [])))
        why = 'it claims to be client 1, "hospital-2", but its key is registered for client 2, "hospital-3"'
        assert [node["name"] for node in status["nodes"] if node["state"] == f"refused: {why}"] == [NODES[2]]
        ready([study.start("node", second)])
        study.finished()

        registered = {node.name: node for node in nodes_of(study)}
        [refused] = study.events("refused")
        assert (refused["name"], refused["node"]) == (NODES[2], registered[NODES[2]].node)
        joined = {line["name"]: line for line in study.events("joined")}
        assert set(joined) == set(NODES[:2])
        assert joined[NODES[1]]["node"] == registered[NODES[1]].node
        assert joined[NODES[1]]["key"] == fingerprint((second / "node.pub").read_text())
        assert [entry["client"] for entry in study.records()[-1]["clients"]] == [0, 1]
        assert {line["name"] for line in study.events("received")} == set(NODES[:2])


def test_node_ids_stay_when_the_server_is_started_again(tmp_path: Path) -> None:
    with Deployment(tmp_path) as study:
        server = study.start("server", study.folder)
        ready([server])
        before = nodes_of(study)
        assert [node.name for node in before] == list(NODES)
        study.fedbm("stop", study.home)
        server.wait(30)
        ready([study.start("server", study.folder)])
        assert nodes_of(study) == before


@pytest.fixture(scope="module")
def front(study: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """nginx with the very file that init makes, but for the place of the folder; its port."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("needs nginx")
    folder = tmp_path_factory.mktemp("nginx")
    port = free_ports(1)
    server = ServerSettings("localhost", port, study.port, ",".join(NODES))
    site = render("nginx.conf.j2", server=server, place=str(study.home))
    (folder / "site.conf").write_text(site)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = "user root;" if os.getuid() == 0 else ""
    whole = f"{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
    whole += f"http {{ access_log {folder}/access.log; {paths} include {folder}/site.conf; }}\n"
    (folder / "nginx.conf").write_text(whole)
    command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    assert subprocess.run([*command, "-t"], capture_output=True, check=False).returncode == 0
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(lambda: reachable(study, port), bool, 20)
    yield port
    process.terminate()
    process.wait(20)


def call(study: Deployment, port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> int:
    context = ssl.create_default_context(cafile=str(study.home / "ca.crt"))
    connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def reachable(study: Deployment, port: int) -> bool:
    try:
        return call(study, port, "GET", "/") == 404
    except OSError:
        return False


def test_the_control_path_is_open_on_loopback_and_not_through_the_front(study: Deployment, front: int) -> None:
    assert call(study, study.port, "POST", "/v1/control/list-nodes") == 415  # there: that is why there is a front
    for path in (
        "/v1/control/list-nodes",
        "/v1/runtime/get-nodes",
        "/docs",
        "/openapi.json",
        "/health",
        "/v1/fleet/",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/..%2fcontrol%2flist-nodes",
        "//v1/control/list-nodes",
    ):
        assert call(study, front, "POST", path) in (400, 404), path
    assert call(study, front, "POST", "/v1/fleet/activate-node") == 415
    assert call(study, front, "GET", "/v1/fleet/activate-node") == 403


def resident(pid: int) -> int:
    """Megabytes of memory in use."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def test_an_oversized_body_is_refused_and_memory_stays_bounded(study: Deployment, front: int) -> None:
    [link] = pids_of(study.home, "superlink")
    before = resident(link)
    context = ssl.create_default_context(cafile=str(study.home / "ca.crt"))
    for chunked in (False, True):
        connection = http.client.HTTPSConnection("localhost", front, timeout=60, context=context)
        blocks = (bytes(1 << 20) for _ in range(300))
        headers = {"Content-Type": "application/protobuf"} | ({} if chunked else {"Content-Length": str(300 << 20)})
        try:
            connection.request("POST", "/v1/fleet/push-object", blocks, headers, encode_chunked=chunked)
            status = connection.getresponse().status
        except OSError:  # it hung up while we were still sending
            status = 413
        assert status == 413
    assert resident(link) - before < 50


def test_a_node_takes_part_through_the_front(study: Deployment, front: int, tmp_path: Path) -> None:
    folder = study.folder / NODES[1]
    settings = read_settings(folder, NodeSettings)
    text = to_text(NodeSettings(settings.client, settings.name, f"localhost:{front}"))
    (folder / "node.toml").write_text(text)
    before = len(online(study))
    ready([study.start("node", folder, "--data", "digits")])
    assert len(online(study)) == before + 1
    study.fedbm("stop", folder)


def test_a_front_without_its_superlink_is_told_apart(study: Deployment, front: int, tmp_path: Path) -> None:
    folder = copy_of(study, tmp_path)
    settings = read_settings(folder, NodeSettings)
    (folder / "node.toml").write_text(to_text(NodeSettings(1, settings.name, f"localhost:{front}")))
    study.fedbm("stop", study.home)
    code, said = node_says(study, folder)
    assert (code, "is not a SuperLink (it answered 502)" in said) == (2, True)
