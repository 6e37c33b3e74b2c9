"""Confusion matrices are held against the numbers of images that a node's census announced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from one_process import Deployed, Node, deploy, engine_process, events_of, records_of

from fedbm.federation.node.handler import answer
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records


def small(tiny: dict[str, Any], tmp_path: Path, method: str = "fedavg", evaluate: str = "nodes") -> Deployed:
    settings = {**tiny, "method": method, "clients": 3, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32}
    return deploy(tmp_path, settings, {"evaluate": evaluate})


def node_of(deployed: Deployed, client: int) -> Node:
    return next(node for node in deployed.grid.nodes.values() if node.config["client"] == client)


Change = Callable[[dict[str, Any]], dict[str, Any]]


def scores(change: Change, only_round: int) -> Callable[[Message, Message], Message]:
    """Spoil what a node answers when it is asked to score."""

    def spoil(request: Message, reply: Message) -> Message:
        asked = from_records(request.content).body
        if request.metadata.message_type != "evaluate" or asked["round"] != only_round:
            return reply
        with engine_process():
            return Message(to_records(Envelope(change(from_records(reply.content).body))), reply_to=request)

    return spoil


def padded(side: str, images: int) -> Change:
    """So many more images in the largest cell."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        matrix = [list(row) for row in body["confusion"][side]]
        row = max(matrix, key=max)
        row[row.index(max(row))] += images
        return {**body, "confusion": {**body["confusion"], side: matrix}}

    return change


@pytest.mark.parametrize(("side", "images"), [("val", 1), ("test", 10**8), ("test", -1)])
def test_a_matrix_of_other_images_than_announced_is_left_out(
    tiny: dict[str, Any], tmp_path: Path, side: str, images: int
) -> None:
    deployed = small(tiny, tmp_path)
    node_of(deployed, 1).spoil = scores(padded(side, images), only_round=2)
    deployed.serve()
    [first] = [line for line in events_of(deployed.state, "joined") if line["client"] == 1][:1]
    [line] = events_of(deployed.state, "rejected")
    assert (line["client"], line["name"], line["key"], line["round"]) == (1, "site 1", "SHA256:1", 2)
    known = first[side]
    assert line["why"] == f"it scored {known + images} images of {side}, but its census announced {known}"
    assert [record["scored"] for record in records_of(deployed)] == [[0, 1, 2], [0, 2]]


def test_a_personal_matrix_is_held_against_the_test_images(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path, "fedrep")

    def change(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "personal": [[10**6, 0, 0], [0, 0, 0], [0, 0, 0]]}

    node_of(deployed, 1).spoil = scores(change, only_round=1)
    deployed.serve()
    [line] = events_of(deployed.state, "rejected")
    assert "it scored 1000000 images of personal, but its census announced" in line["why"]
    assert sorted(records_of(deployed)[0]["personal"]["clients"]) == ["0", "2"]


def test_the_census_announces_what_will_be_scored(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path)
    deployed.serve()
    for line in events_of(deployed.state, "joined"):
        assert line["fields"] == ["classes", "n", "val", "test"]
    announced = {line["client"]: (line["val"], line["test"]) for line in events_of(deployed.state, "joined")}
    for line in events_of(deployed.state, "scored"):
        assert {node["client"]: tuple(node["images"].values()) for node in line["nodes"]} == announced
    [own] = events_of(tmp_path / "node-1", "census")
    assert {"val", "test"} <= set(own["fields"])


def test_where_the_server_scores_the_numbers_do_not_leave(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path, evaluate="server")
    deployed.serve()
    for client in range(3):
        [own] = events_of(tmp_path / f"node-{client}", "census")
        assert not {"val", "test"} & set(own["fields"])


def test_with_privacy_a_node_does_not_announce_them(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = small(tiny, tmp_path)
    deployed.serve()
    node = node_of(deployed, 0)
    terms = from_records(node.requests[0].content).body["terms"]
    private = {**terms, "privacy": {"noise": 1.0, "clip": 1.0, "delta": 1e-5}}
    assert answer("query.census", Envelope({"terms": private}), node.config).body["code"] == "terms"
    quiet = {**private, "evaluates": False}
    assert answer("query.census", Envelope({"terms": quiet}), node.config).body["code"] == "ok"


@pytest.mark.parametrize(
    ("evaluate", "said", "why"),
    [
        ("nodes", {"val": -1}, "its census cannot be read"),
        ("nodes", {"test": "9"}, "its census cannot be read"),
        ("nodes", {"test": 10**9}, "it claims 1000000000 images, above max_samples = 1000000 in server.toml"),
        ("server", {"val": 3}, "it did not send val, or this run does not ask for it"),
    ],
)
def test_a_census_with_impossible_numbers_is_refused(
    tiny: dict[str, Any], tmp_path: Path, evaluate: str, said: dict[str, Any], why: str
) -> None:
    deployed = small(tiny, tmp_path, evaluate=evaluate)
    deployed.options["deadline_s"] = 0.01

    def spoil(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "query.census":
            return reply
        with engine_process():
            return Message(to_records(Envelope({**from_records(reply.content).body, **said})), reply_to=request)

    node_of(deployed, 1).spoil = spoil
    deployed.serve()
    assert [line["why"] for line in events_of(deployed.state, "refused")] == [why]
