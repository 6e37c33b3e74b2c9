"""Who a node is follows from its key: what it claims of itself is held against the registered key."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from one_process import Deployed, Node, deploy, events_of, records_of

from fedbm.errors import FedBMError
from fedbm.federation.deploy import registration
from fedbm.federation.deploy.certificates import make_authority, make_node
from fedbm.federation.deploy.registration import Registered, find_registered, fingerprint
from fedbm.federation.deploy.settings_files import ServerSettings, to_text
from fedbm.utils.io import write_text

ED25519 = b"AAAAC3NzaC1lZDI1NTE5AAAAIP4w/7ajFKMW8Iym0TNyPqbpSQ230lmApaaoafUzw7Gu"


@pytest.fixture
def deployed(tiny: dict[str, Any], tmp_path: Path) -> Deployed:
    settings = {**tiny, "clients": 3, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32}
    return deploy(tmp_path, settings, {"deadline_s": 0.01})


def site(deployed: Deployed, client: int) -> tuple[int, Node]:
    """The Flower node id of a client, and its node."""
    return next(item for item in deployed.grid.nodes.items() if item[1].config["client"] == client)


def kinds(node: Node) -> list[str]:
    return [request.metadata.message_type for request in node.requests]


def test_a_hospital_cannot_pretend_to_be_another(deployed: Deployed) -> None:
    """The third site claims to be the second and answers before it: it is refused, and the second takes part."""
    (second, honest), (third, hostile) = site(deployed, 1), site(deployed, 2)
    hostile.config |= {"client": 1, "name": "site 1"}
    honest.connected = False

    def come_later(request: Message, reply: Message) -> Message:
        honest.connected = True
        return reply

    hostile.spoil = come_later
    deployed.serve()

    why = 'it claims to be client 1, "site 1", but its key is registered for client 2, "site 2"'
    [refused] = events_of(deployed.state, "refused")
    told = tuple(refused[key] for key in ("client", "name", "node", "key", "why"))
    assert told == (2, "site 2", str(third), "SHA256:2", why)
    status = json.loads((deployed.state / "status.json").read_text())
    assert [(node["name"], node["state"]) for node in status["nodes"]][-1] == ("site 2", f"refused: {why}")
    assert kinds(hostile) == ["query.census", "query.refused"], "it gets no model, and learns why"
    assert records_of(deployed)[-1]["selected"] == [0, 1]
    joined = {line["client"]: (line["name"], line["node"], line["key"]) for line in events_of(deployed.state, "joined")}
    assert joined == {0: ("site 0", str(site(deployed, 0)[0]), "SHA256:0"), 1: ("site 1", str(second), "SHA256:1")}


def test_a_node_that_nobody_registered_is_told_nothing(deployed: Deployed) -> None:
    stranger = Node(dict(site(deployed, 2)[1].config))
    deployed.grid.nodes[4711] = stranger
    deployed.serve()
    [refused] = events_of(deployed.state, "refused")
    assert (refused["node"], "this server did not register it" in refused["why"]) == ("4711", True)
    assert stranger.requests == []
    assert records_of(deployed)[-1]["selected"] == [0, 1, 2]


def test_every_answer_in_the_audit_has_its_node_and_key(deployed: Deployed) -> None:
    deployed.options["evaluate"] = "nodes"
    silent = site(deployed, 2)[1]
    silent.spoil = lambda request, reply: None if request.metadata.message_type == "train" else reply
    deployed.serve()
    scored = [node for line in events_of(deployed.state, "scored") for node in line["nodes"]]
    answers = [line for event in ("received", "missed") for line in events_of(deployed.state, event)]
    assert len(answers) == 6
    assert len(scored) == 6
    for line in (*answers, *scored):
        node, _ = site(deployed, line["client"])
        assert (line["node"], line["key"]) == (str(node), f"SHA256:{line['client']}")


def test_a_run_needs_a_superlink_that_lists_its_keys(deployed: Deployed) -> None:
    home = deployed.folder / "server"
    make_authority(home, "none")
    settings = ServerSettings(link_port=9)  # nothing answers there
    write_text(home / "server.toml", to_text(settings))
    with pytest.raises(FedBMError, match="the SuperLink did not answer list-nodes: .*refused"):
        find_registered(home, settings)


def test_only_keys_of_server_toml_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that anyone else registered, one that was removed, and one that still waits identify no node."""
    keys = {}
    for name in ("north", "south", "west", "stranger"):
        make_node(tmp_path / name, name)
        write_text(tmp_path / "nodes" / f"{name}.pub", (tmp_path / name / "node.pub").read_text())
        keys[name] = " ".join((tmp_path / name / "node.pub").read_text().split()[:2])
    known = {keys["stranger"]: 1, keys["north"]: 2, keys["south"]: None}
    monkeypatch.setattr(registration, "known_keys", lambda folder: known)
    settings = ServerSettings(nodes=",north,south,west")
    assert find_registered(tmp_path, settings) == {2: Registered(1, "north", "2", fingerprint(keys["north"]))}
    (tmp_path / "nodes" / "west.pub").write_text(keys["north"] + " a comment")
    with pytest.raises(FedBMError, match="two nodes have the same public key"):
        find_registered(tmp_path, settings)
    (tmp_path / "nodes" / "west.pub").write_bytes(f"{keys['north']} Sankt Jürgen\n".encode("latin-1"))
    with pytest.raises(FedBMError, match="two nodes have the same public key"):
        find_registered(tmp_path, settings)
    (tmp_path / "nodes" / "west.pub").unlink()
    with pytest.raises(FedBMError, match=r"cannot read .*west\.pub: .*No such file"):
        find_registered(tmp_path, settings)
    private = (tmp_path / "west" / "node.key").read_bytes()
    for wrong in (b"", b"\xff\xfe", private, b"ecdsa-sha2-nistp384 AAAA= a", b"ssh-ed25519 " + ED25519):
        (tmp_path / "nodes" / "west.pub").write_bytes(wrong)
        with pytest.raises(FedBMError, match=r"west\.pub"):  # Flower's own message would not name the node
            find_registered(tmp_path, settings)


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path) -> None:
    make_node(tmp_path, "north")
    found = fingerprint((tmp_path / "node.pub").read_text())
    assert len(found) == len("SHA256:") + 16
    if (tool := shutil.which("ssh-keygen")) is None:
        pytest.skip("needs ssh-keygen")
    shown = subprocess.run([tool, "-lf", tmp_path / "node.pub"], capture_output=True, text=True, check=True).stdout
    assert found in shown
