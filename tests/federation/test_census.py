"""Who may take part: versions, protocol, class names in any order, data, and one node per client."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from one_process import Deployed, Node, deploy, digests_in_process, engine_process, events_of, with_scores

from fedbm.errors import FedBMError
from fedbm.federation.deploy.settings_files import OPEN_POLICY, NodeSettings, ServerSettings, read_refusal, to_text
from fedbm.federation.node import handler as node
from fedbm.federation.node.node_data import open_site, write_share
from fedbm.federation.protocol import messages as protocol
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import REFUSED, Refusal, accept_terms, is_safe_name
from fedbm.federation.server import roster


@pytest.fixture
def deployed(tiny: dict[str, Any], tmp_path: Path) -> Deployed:
    settings = {**tiny, "clients": 3, "rounds": 1, "participation": 1.0, "beta": 0.5, "batch": 32}
    return deploy(tmp_path, settings, {"deadline_s": 0.01})


def second(deployed: Deployed) -> Node:
    return list(deployed.grid.nodes.values())[1]


def refusal(deployed: Deployed) -> str:
    """Serve, and the one sentence with which a node was kept out."""
    deployed.serve()
    [line] = events_of(deployed.state, "refused")
    [record] = events_of(deployed.state, "round")
    assert record["counted"] == [0, 2]
    status = json.loads((deployed.state / "status.json").read_text())
    assert status["nodes"][-1]["state"] == f"refused: {line['why']}"
    return str(line["why"])


def census_says(**values: Any) -> Callable[[Message, Message], Message]:
    def spoil(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "query.census":
            return reply
        found = from_records(reply.content)
        with engine_process():
            return Message(to_records(Envelope({**found.body, **values})), reply_to=request)

    return spoil


def test_class_order_at_a_site_does_not_matter(deployed: Deployed) -> None:
    plan = deployed.plan
    own = with_scores(plan.dataset, plan.partition.clients[1], 1, 3)
    turned = deployed.folder / "turned"
    write_share(turned, plan.dataset, own, classes=plan.dataset.classes[::-1])
    second(deployed).config["data"] = str(turned)
    deployed.serve()
    assert [line["state"] for line in events_of(deployed.state, "round")] == digests_in_process(plan)


def test_a_site_may_lack_a_class(deployed: Deployed) -> None:
    dataset = deployed.plan.dataset
    some = np.flatnonzero(dataset.labels != 1)
    write_share(deployed.folder / "two", dataset, some, classes=("polyp", "cyst", "normal"))
    found = open_site(str(deployed.folder / "two"), dataset.classes, dataset.shape)
    assert np.array_equal(found.dataset.labels, dataset.labels[some])
    assert found.label_counts("train")[1] == 0


def test_an_unknown_class_is_refused_by_name(deployed: Deployed, scans: Path, tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for label in ("cyst", "normal", "polyp", "tumour"):
        (tmp_path / "scans" / label).symlink_to(scans / label.replace("tumour", "cyst"))
    second(deployed).config["data"] = str(tmp_path / "scans")
    assert refusal(deployed) == "it has a class that the run does not know: tumour; the run has cyst, normal, polyp"


def test_a_site_gives_any_data_that_fedbm_reads(deployed: Deployed, scans: Path) -> None:
    second(deployed).config["data"] = str(scans)
    deployed.serve()
    assert [line["n"] for line in events_of(deployed.state, "joined") if line["client"] == 1] == [63]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"data": "/nowhere/smith.dcm"}, "it cannot read its data, or they are damaged"),
        ({"device": "gpu"}, "it cannot use the device in its node.toml; see its own log"),
        ({"size": 20}, "it has images of another size or number of channels"),
        ({"channels": 3}, "it has images of another size or number of channels"),
        ({"client": 0}, 'it claims to be client 0, "site 1", but its key is registered for client 1, "site 1"'),
        ({"name": "site 0"}, 'it claims to be client 1, "site 0", but its key is registered for client 1, "site 1"'),
    ],
)
def test_a_node_that_is_set_up_wrong(deployed: Deployed, change: dict[str, Any], why: str) -> None:
    second(deployed).config |= change
    assert refusal(deployed) == why


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"versions": None}, "its census cannot be read"),
        ({"classes": ["cyst", "<b>"]}, 'it has the class "<b>", but the run has only cyst, normal, polyp'),
        ({"n": 0}, "its census cannot be read"),
        ({"n": 1e3}, "its census cannot be read"),
        ({"n": True}, "its census cannot be read"),
        ({"n": 10**9}, "it claims 1000000000 images, above max_samples = 1000000 in server.toml"),
        ({"label_counts": [1, 2, 3]}, "it did not send label_counts, or this run does not ask for it"),
        ({"holds": []}, "its census cannot be read"),
        ({"terms": "?"}, "it answered for another terms than it was asked for"),
        ({"code": None}, "it answered with an unknown code"),
    ],
)
def test_an_answer_that_is_not_believed(deployed: Deployed, said: dict[str, Any], why: str) -> None:
    second(deployed).spoil = census_says(**said)
    assert refusal(deployed) == why


def test_the_operator_bounds_the_number_of_images(deployed: Deployed) -> None:
    """The cap is the one of server.toml: a node that claims the largest number it allows takes part."""
    most = max(len(own) for own in deployed.plan.partition.clients)
    deployed.server = ServerSettings(max_samples=most)
    second(deployed).spoil = census_says(n=most + 1)
    assert refusal(deployed) == f"it claims {most + 1} images, above max_samples = {most} in server.toml"
    [line] = events_of(deployed.state, "started")
    assert line["max_samples"] == most


def test_a_node_that_this_server_refused_is_asked_again(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "CENSUS_POLL_S", 0.0)
    deployed.options["deadline_s"] = 60.0
    node, claims_too_many = second(deployed), census_says(n=10**9)
    node.spoil = lambda request, reply: reply if len(node.requests) > 1 else claims_too_many(request, reply)
    deployed.serve()
    assert len(events_of(deployed.state, "refused")) == 1
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 1, 2]]


def test_another_version_at_a_node(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = node.accept_terms

    def old(values: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(protocol, "__version__", "0.0.9")
            return plain(values)

    monkeypatch.setattr(node, "accept_terms", old)
    deployed.options["max_round_attempts"] = 1
    with pytest.raises(FedBMError, match="round 1 was tried 1 times"):
        deployed.serve()
    assert len(events_of(deployed.state, "refused")) == 3
    found = {line["name"]: line["why"] for line in events_of(deployed.state, "refused")}
    assert all(why.startswith("it has another version of fedbm: fedbm 0.") for why in found.values())
    assert sorted(found) == ["site 0", "site 1", "site 2"]


def test_a_refused_node_learns_why_and_forgets_it_when_it_is_taken_in(deployed: Deployed) -> None:
    node, state = second(deployed), deployed.folder / "node-1"
    node.config["client"] = 3
    why = refusal(deployed)
    assert read_refusal(state) == why
    assert [line["why"] for line in events_of(state, "refused_by_server")] == [why]
    node.config["client"] = 1
    deployed.plan = dataclasses.replace(
        deployed.plan,
        config=dataclasses.replace(deployed.plan.config, train=dataclasses.replace(deployed.plan.config.train, seed=8)),
    )
    deployed.serve()
    assert read_refusal(state) == ""


def test_a_sentence_of_the_server_is_made_printable(deployed: Deployed) -> None:
    state = deployed.folder / "node-1"
    request = Envelope({"why": "\x1b[31mred\n" + "x" * 1000})
    assert node.answer(REFUSED, request, second(deployed).config).body["code"] == "ok"
    assert read_refusal(state).startswith("?[31mred?xxx")
    assert len(read_refusal(state)) == 400


def test_a_site_that_cannot_even_write_its_audit_says_no_more(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    (deployed.folder / "smith").write_text("a file where the folder should be")
    second(deployed).config["state"] = str(deployed.folder / "smith")
    assert refusal(deployed) == "it failed; see its own log"
    assert "smith" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no file that is always full")
def test_a_log_on_a_full_disk_lets_no_text_out(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    (deployed.folder / "smith").write_text("a file where the folder should be")
    second(deployed).config["state"] = str(deployed.folder / "smith")
    with open("/dev/full", "w", buffering=1) as full, open(os.devnull, "w") as nothing:
        monkeypatch.setattr(sys, "stderr", full)
        assert refusal(deployed) == "it failed; see its own log"
        monkeypatch.undo()
        os.dup2(nothing.fileno(), full.fileno())  # for what its buffer still holds


def test_a_node_of_another_protocol_says_so() -> None:
    with pytest.raises(Refusal) as found:
        accept_terms({"versions": {"protocol": protocol.PROTOCOL + 1}})
    assert found.value.code == "protocol"


@pytest.fixture
def terms(deployed: Deployed) -> dict[str, Any]:
    deployed.serve()
    [folder] = (deployed.state / "runs").iterdir()
    found: dict[str, Any] = json.loads((folder / "federation.json").read_text())["terms"]
    assert accept_terms(found).run == folder.name
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"run": "../../etc"},
        {"run": "/etc"},
        {"run": ".."},
        {"method": {"name": "os.system"}},
        {"method": {"name": "central"}},
        {"method": {"name": "fedprox", "mu": -1}},
        {"train": {"rounds": 10, "lr": "x"}},
        {"model": {"init_weights": "/etc/passwd"}},
        {"model": {"width": 2}},
        {"compression": "zip"},
        {"privacy": {"noise": 0.0, "clip": 1.0, "delta": 1e-5}},
        {"privacy": {"noise": 1.0, "clip": 1.0, "delta": 1e-5}, "method": {"name": "fednh"}},
        {"task": None},
        {"junk": 1},
        {"evaluates": 1},
        {"init_weights": "no"},
        {"task": {"hflip": "/etc/passwd"}},
        {"task": {"vflip": [1]}},
        {"concepts": {"texts": ["a", "b", "c"], "checksum": "", "junk": 1}},
        {"concepts": {"texts": ["one"], "checksum": ""}},
    ],
)
def test_terms_that_a_node_does_not_accept(terms: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as found:
        accept_terms(
            {**terms, **change} | ({"task": {**terms["task"], **change["task"]}} if change.get("task") else {})
        )
    assert found.value.code == "terms"


def test_names_that_may_become_files() -> None:
    assert all(map(is_safe_name, ("fedbm-digits-s0-0d40dd66302d", "task.concepts", "model")))
    assert not any(map(is_safe_name, ("", ".", "..", ".hidden", "a/b", "a\\b", "a\0", "x" * 201, None, 3)))


def test_prepared_images_of_another_size_are_refused(deployed: Deployed) -> None:
    with pytest.raises(Refusal) as found:
        open_site(second(deployed).config["data"], deployed.plan.dataset.classes, (1, 32, 32))
    assert found.value.code == "size"


@pytest.mark.parametrize("scores", [True, False])
def test_the_place_of_a_former_node_costs_no_wait(
    scores: bool, deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.options |= {"evaluate": "nodes", "deadline_s": 60.0}
    gone = next(number for number, one in deployed.grid.nodes.items() if one.config["client"] == 1)
    del deployed.grid.nodes[gone]
    deployed.registered = [one for one in deployed.registered if one.client != 1]
    for one in deployed.grid.nodes.values():
        rules = dataclasses.replace(OPEN_POLICY, scores=scores)
        (Path(str(one.config["folder"])) / "node.toml").write_text(to_text(NodeSettings(policy=rules)))
    monkeypatch.setattr(roster, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pytest.fail))
    if not scores:
        with pytest.raises(FedBMError, match="no node has val images to score"):
            deployed.serve()
        return
    deployed.serve()
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0, 2]]
