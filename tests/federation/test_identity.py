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
from fedbm.federation.deploy.certificates import make_node
from fedbm.federation.deploy.registration import fingerprint


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


def test_without_the_list_of_keys_no_run_starts(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("one_process.write_registry", lambda folder, nodes: None)
    with pytest.raises(FedBMError, match=r"there is no file .*registered\.json; restart the server"):
        deployed.serve()
    (deployed.folder / "server").mkdir(exist_ok=True)
    (deployed.folder / "server" / "registered.json").write_text('{"ecdsa-sha2-nistp384 AAAA": "7"}')
    with pytest.raises(FedBMError, match=r"registered\.json: format is missing; restart the server"):
        deployed.serve()
    unknown = {"node": "seven", "client": 0, "name": "north", "key": "SHA256:AAAA"}
    (deployed.folder / "server" / "registered.json").write_text(json.dumps({"format": 1, "nodes": [unknown]}))
    with pytest.raises(FedBMError, match="the node id of north is not a number; restart the server"):
        deployed.serve()


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path) -> None:
    make_node(tmp_path, "north")
    found = fingerprint((tmp_path / "node.pub").read_text())
    assert len(found) == len("SHA256:") + 16
    if (tool := shutil.which("ssh-keygen")) is None:
        pytest.skip("needs ssh-keygen")
    shown = subprocess.run([tool, "-lf", tmp_path / "node.pub"], capture_output=True, text=True, check=True).stdout
    assert found in shown
