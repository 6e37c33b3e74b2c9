"""Nodes that lie, break, stay away or come back: each is named in the audit, and the run continues without them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    validate_object_content,
)
from flwr.superlink.grid import http_grid
from one_process import Deployed, Node, deploy, digests_in_process, engine_process, events_of, records_of

from fedbm.errors import FedBMError
from fedbm.federation.node import loaded_run
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import UPLOAD
from fedbm.federation.protocol.packing import Packed, pack, unpack
from fedbm.federation.server import flower_clients, roster, server_app
from fedbm.federation.server.run_status import read_status
from fedbm.methods.base import Facts, State
from fedbm.methods.scaffold import Scaffold

CLOCK = [0.0]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for a reply costs a hundredth of a second of made-up time, and none of ours."""
    CLOCK[0] = 0.0
    for module in (roster, flower_clients):
        monkeypatch.setattr(module.time, "monotonic", lambda: CLOCK[0])
    monkeypatch.setattr(flower_clients.time, "sleep", lambda seconds: CLOCK.__setitem__(0, CLOCK[0] + 0.05))


@pytest.fixture
def settings(tiny: dict[str, Any]) -> dict[str, Any]:
    return {**tiny, "method": "scaffold", "clients": 3, "rounds": 3, "participation": 1.0, "beta": 0.5}


def node_of(deployed: Deployed, client: int) -> Node:
    return next(node for node in deployed.grid.nodes.values() if node.config["client"] == client)


def changed(changes: Mapping[int, Callable[[Envelope], Envelope]]) -> Callable[[Message, Message], Message]:
    """Spoil what a node answers in some rounds of training."""

    def spoil(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "train":
            return reply
        change = changes.get(from_records(request.content).body["round"])
        if change is None:
            return reply
        with engine_process():
            return Message(to_records(change(from_records(reply.content))), reply_to=request)

    return spoil


def with_state(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Envelope], Envelope]:
    return lambda found: Envelope(found.body, {UPLOAD: pack(change(unpack(found.packed[UPLOAD])))})


def with_body(**values: Any) -> Callable[[Envelope], Envelope]:
    return lambda found: Envelope({**found.body, **values}, found.packed)


def with_packed(change: Callable[[Packed], Packed]) -> Callable[[Envelope], Envelope]:
    return lambda found: Envelope(found.body, {UPLOAD: change(found.packed[UPLOAD])})


W = "body.conv1.weight"

UPLOADS = {
    "nan": (with_state(lambda s: {**s, W: s[W] * math.nan}), f"{W} is not finite"),
    "infinite": (with_state(lambda s: {**s, W: s[W] / 0}), f"{W} is not finite"),
    "huge": (with_state(lambda s: {**s, W: s[W] + 1e9}), "above max_norm = 1e+06"),
    "shape": (with_state(lambda s: {**s, W: s[W][:1]}), f"{W} is missing, or is not torch.float32"),
    "dtype": (with_state(lambda s: {**s, W: s[W].double()}), f"{W} is missing, or is not torch.float32"),
    "smaller dtype": (with_state(lambda s: {**s, W: s[W].half()}), f"{W} is missing, or is not torch.float32"),
    "missing": (with_state(lambda s: {n: v for n, v in s.items() if n != W}), f"{W} is missing"),
    "foreign": (with_state(lambda s: {**s, "x": torch.zeros(0)}), "it has tensors that the method does not send"),
    "oversized": (with_state(lambda s: {**s, "x": torch.zeros(10**6)}), "it has tensors that the method does not send"),
    "damaged": (
        with_packed(lambda p: dataclasses.replace(p, buffers={w: b[:-1] + b"\7" for w, b in p.buffers.items()})),
        "their checksum differs",
    ),
    "cut": (
        with_packed(lambda p: dataclasses.replace(p, buffers={w: b[:-8] for w, b in p.buffers.items()})),
        "the number of bytes does not match the header",
    ),
    "no tensors": (lambda found: Envelope(found.body), "the header of the tensors cannot be read"),
    "round": (with_body(round=7), "it answered for another round"),
    "client": (with_body(client=0), "it answered for another client"),
    "terms": (with_body(terms="0" * 64), "it answered for another terms"),
    "weight": (with_body(n=10**12), "it trained on 1000000000000 images"),
    "negative weight": (with_body(n=-5), "it trained on -5 images"),
    "losses": (with_body(losses={"x": "<script>"}), "its report of the training cannot be read"),
    "huge losses": (with_body(losses={"x": 1e100}), "its report of the training cannot be read"),
    "long name of a loss": (with_body(losses={"x" * 10_000: 1.0}), "its report of the training cannot be read"),
    "negative time": (with_body(seconds=-1.0), "its report of the training cannot be read"),
    "endless time": (with_body(seconds=1e13), "its report of the training cannot be read"),
    "code": (with_body(code="<b>"), "answered with an unknown code"),
    "failed": (with_body(code="failed"), "it failed; see its own log"),
}


def test_bad_uploads_are_named_and_left_out(settings: dict[str, Any], tmp_path: Path) -> None:
    """Client 1 sends each of them in a round of its own, and a good one at the end."""
    rounds = len(UPLOADS) + 1
    more = {"clients": 2, "rounds": rounds, "batch": 32}
    deployed = deploy(tmp_path, {**settings, **more}, {"max_missed_deadlines": rounds})
    changes = {number: change for number, (change, _) in enumerate(UPLOADS.values(), 1)}
    node_of(deployed, 1).spoil = changed(changes)
    deployed.serve()
    records = records_of(deployed)
    assert [[entry["client"] for entry in record["clients"]] for record in records] == [[0]] * len(UPLOADS) + [[0, 1]]
    told = events_of(deployed.state, "rejected") + events_of(deployed.state, "missed")
    reasons = {(line["client"], line["round"]): line["why"] for line in told}
    assert len(told) == len(UPLOADS)
    for number, (what, (_, why)) in enumerate(UPLOADS.items(), 1):
        [dropped] = records[number - 1]["dropped"]
        assert (dropped["client"], dropped["reason"]) == (1, reasons[1, number]), what
        assert why in dropped["reason"], what
    assert len(read_status(deployed.state.parent).rounds) == rounds  # the operator's commands read every record


def with_counts(factor: float) -> Callable[[Envelope], Envelope]:
    return with_state(lambda s: {n: v * factor if n.endswith(".counts") else v for n, v in s.items()})


@pytest.mark.parametrize("method", ["fednh", "fedproto", "ccvr", "fedgen"])
def test_a_node_cannot_claim_more_images_of_a_class_than_in_its_census(
    method: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    """The numbers in an upload, not n, are a site's weight in the statistics of a class."""
    run = {**tiny, "method": method, "clients": 2, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32}
    deployed = deploy(tmp_path, run)
    node_of(deployed, 1).spoil = changed({1: with_counts(1000.0)})
    deployed.serve()
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[0], [0, 1]]
    [line] = events_of(deployed.state, "rejected")
    assert (line["client"], line["why"]) == (1, "its numbers of images per class differ from its census")
    assert [line["client"] for line in events_of(deployed.state, "joined")].count(1) == 2  # its census was asked again


@pytest.mark.parametrize("compression", ["half", "delta"])
@pytest.mark.parametrize("method", ["fednh", "fedproto", "ccvr", "fedgen"])
def test_numbers_of_images_that_compression_rounds_are_accepted(
    method: str, compression: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    run = {**tiny, "method": method, "clients": 2, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32}
    deployed = deploy(tmp_path, run, {"compression": compression, "max_norm_ratio": 1e6})
    deployed.serve()
    assert not events_of(deployed.state, "rejected")


def test_a_refused_client_goes_on_from_its_former_state(settings: dict[str, Any], tmp_path: Path) -> None:
    """Round 2 did not count for client 1, so in round 3 it starts from round 1, as it would in one process."""
    deployed = deploy(tmp_path, settings)
    node_of(deployed, 1).spoil = changed({2: with_state(lambda s: {**s, W: s[W] * math.nan})})
    deployed.serve()
    asked = [from_records(request.content).body for request in node_of(deployed, 1).requests[1:]]
    assert [(body["round"], body["counted"]) for body in asked] == [(1, 0), (2, 1), (3, 1)]
    kept = sorted(path.name for path in (tmp_path / "node-1").rglob("clients/*"))
    assert kept == ["1-1.safetensors", "1-3.safetensors"]


def test_an_error_of_the_engine_is_told_by_its_code_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    def broken(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train":
            return Message(Error(2, "/srv/patients/smith.dcm"), reply_to=request)
        return reply

    deployed = deploy(tmp_path, settings)
    node_of(deployed, 2).spoil = broken
    deployed.serve()
    assert {line["client"] for line in events_of(deployed.state, "missed")} == {2}
    assert "Flower reports error 2" in events_of(deployed.state, "missed")[0]["why"]
    assert not [path for path in deployed.state.rglob("*") if path.is_file() and b"smith" in path.read_bytes()]


def test_an_answer_that_flower_cannot_decode_is_left_out(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SuperLink checks only the head of what a node sends; the server app decodes the rest."""
    deployed = deploy(tmp_path, settings)
    pull = deployed.grid.pull_messages
    garbage = b"ConfigRecord  7\x00garbage"
    name = hashlib.sha256(garbage).hexdigest()

    def pull_garbage(message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(pull(message_ids))
        for reply in found:
            if reply.metadata.message_type == "train" and reply.metadata.src_node_id == 9000 - 7:
                validate_object_content(garbage)
                inflate_object_from_contents(name, {name: garbage})
        return found

    monkeypatch.setattr(deployed.grid, "pull_messages", pull_garbage)
    deployed.serve()
    assert {(line["client"], line["why"]) for line in events_of(deployed.state, "missed")} == {
        (1, "its answer cannot be decoded")
    }
    assert next(line["counted"] for line in events_of(deployed.state, "round")) == [0, 2]


def test_a_node_that_never_sends_what_it_announced_costs_the_others_nothing(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer begins shortly before the deadline, and the server waits for the rest as long as a deadline."""
    deployed = deploy(tmp_path, {**settings, "rounds": 1}, {"deadline_s": 100, "min_updates": 2})
    pull = deployed.grid.pull_messages
    looks: list[str] = []

    def look(name: str) -> bytes:
        looks.append(name)
        CLOCK[0] += 101.0
        raise ObjectUnavailableError(name)

    def pull_slowly(message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(pull(message_ids))
        for reply in found:
            if reply.metadata.message_type == "train" and reply.metadata.src_node_id == 9000:
                with pytest.raises(ObjectPullError):
                    http_grid.pull_objects(["never sent"], look)
                return []
        return found

    monkeypatch.setattr(flower_clients.time, "sleep", lambda seconds: CLOCK.__setitem__(0, CLOCK[0] + seconds))
    node_of(deployed, 0).delay = lambda request: 95.0 if request.metadata.message_type == "train" else 0.0
    for client in (1, 2):
        node_of(deployed, client).delay = lambda request: 99.0 if request.metadata.message_type == "train" else 0.0
    monkeypatch.setattr(deployed.grid, "pull_messages", pull_slowly)
    deployed.serve()
    assert len(looks) == 1  # it gave up after the 100 s
    assert [line["counted"] for line in events_of(deployed.state, "round")] == [[1, 2]]


def test_a_message_far_larger_than_an_upload_is_not_read_and_the_run_continues(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = deploy(tmp_path, settings, {"deadline_s": 0.5, "min_updates": 2})
    pull = deployed.grid.pull_messages

    def pull_objects_of(message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(pull(message_ids))
        for reply in found:
            contents = {name: item.deflate() for name, item in get_all_nested_objects(reply).items()}
            if reply.metadata.message_type == "train" and reply.metadata.src_node_id == 9000 - 7:
                contents |= {str(number): bytes(100_000) for number in range(10)}
            http_grid.pull_objects(list(contents), contents.__getitem__)
        return found

    monkeypatch.setattr(server_app, "MAX_OTHER_BYTES", 100_000)
    monkeypatch.setattr(deployed.grid, "pull_messages", pull_objects_of)
    deployed.serve()
    [why] = {line["why"] for line in events_of(deployed.state, "missed")}
    assert re.fullmatch(r"its message has more than [\d,]+ bytes, the most that this run needs", why)
    assert next(line["counted"] for line in events_of(deployed.state, "round")) == [0, 2]


def test_a_node_that_answers_nonsense_at_once_does_not_fill_the_audit(settings: dict[str, Any], tmp_path: Path) -> None:
    def nonsense(request: Message, reply: Message) -> Message:
        with engine_process():
            return Message(RecordDict(), reply_to=request)

    deployed = deploy(tmp_path, {**settings, "rounds": 1}, {"deadline_s": 60})  # which the server waits for all nodes
    node_of(deployed, 1).spoil = nonsense
    deployed.serve()
    assert 0 < len(events_of(deployed.state, "refused")) < 20
    assert next(line["counted"] for line in events_of(deployed.state, "round")) == [0, 2]


def test_what_goes_wrong_at_a_site_stays_there(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: Any, **more: Any) -> None:
        raise OSError("cannot read /srv/patients/smith.dcm")

    deployed = deploy(tmp_path, settings, {"max_round_attempts": 2})
    monkeypatch.setattr(loaded_run, "train_client", fails)
    with pytest.raises(FedBMError, match="tried 2 times and never had enough usable updates"):
        deployed.serve()
    assert "smith.dcm" in capsys.readouterr().err  # the site's own log
    assert {line["why"] for line in events_of(deployed.state, "missed")} == {"it failed; see its own log"}
    assert {line["code"] for client in range(3) for line in events_of(tmp_path / f"node-{client}", "refused")} == {
        "failed"
    }
    assert not [p for p in tmp_path.rglob("*.json*") if b"smith" in p.read_bytes()]
    assert json.loads((deployed.state / "status.json").read_text())["phase"] == "failed"


def test_too_few_answers_repeat_the_round(settings: dict[str, Any], tmp_path: Path) -> None:
    """Two of three stay silent at the first try of round 2: it is run again, and ends as if nothing had been."""
    deployed = deploy(tmp_path, settings, {"min_updates": 2})
    silent = {1, 2}

    def once(client: int) -> Callable[[Message, Message], Message | None]:
        def spoil(request: Message, reply: Message) -> Message | None:
            if from_records(request.content).body.get("round") == 2 and client in silent:
                silent.remove(client)
                return None
            return reply

        return spoil

    for client in (1, 2):
        node_of(deployed, client).spoil = once(client)
    deployed.serve()
    assert [line["client"] for line in events_of(deployed.state, "missed")] == [1, 2]
    states = [line["state"] for line in events_of(deployed.state, "round")]
    assert states == digests_in_process(deployed.plan)  # though clients had trained round 2 already
    assert [record["round"] for record in records_of(deployed)] == [1, 2, 3]


def delayed_in(rounds: set[int], seconds: float) -> Callable[[Message], float]:
    return lambda request: seconds if from_records(request.content).body.get("round") in rounds else 0.05


def test_a_slow_client_0_costs_the_others_nothing(settings: dict[str, Any], tmp_path: Path) -> None:
    """Client 0 answers after the deadline in round 2. Clients 1 and 2 answer in time, and round 2 counts with them."""
    deployed = deploy(tmp_path, {**settings, "rounds": 4}, {"min_updates": 2})
    for client, seconds in ((0, 1.0), (1, 0.1), (2, 0.05)):  # the deadline is 0.2 s
        node_of(deployed, client).delay = delayed_in({2}, seconds)
    deployed.serve()
    used = [[entry["client"] for entry in record["clients"]] for record in records_of(deployed)]
    assert used == [[0, 1, 2], [1, 2], [0, 1, 2], [0, 1, 2]]
    missed = events_of(deployed.state, "missed")
    assert [(line["client"], line["round"], line["why"]) for line in missed] == [(0, 2, "no answer within 0.2 s")]
    nodes = json.loads((deployed.state / "status.json").read_text())["nodes"]
    assert [(entry["client"], entry["missed_deadlines"]) for entry in nodes] == [(0, 0), (1, 0), (2, 0)]


def test_replies_that_overtake_each_other_are_aggregated_in_client_order(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    deployed = deploy(tmp_path, settings)
    for client, seconds in ((0, 0.15), (1, 0.1), (2, 0.0)):
        node_of(deployed, client).delay = delayed_in({1, 2, 3}, seconds)
    deployed.serve()
    assert [line["client"] for line in events_of(deployed.state, "received")] == [0, 1, 2] * 3
    assert [line["state"] for line in events_of(deployed.state, "round")] == digests_in_process(deployed.plan)


def test_a_late_reply_to_an_earlier_attempt_is_not_taken_for_a_new_one(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Round 2, first try: client 0 is late. Second try: only that late reply arrives. Third try: all is well."""
    deployed = deploy(tmp_path, settings, {"min_updates": 3})
    slow, tries = node_of(deployed, 0), [0]

    def second_reply_is_lost(request: Message, reply: Message) -> Message | None:
        tries[0] += from_records(request.content).body.get("round") == 2
        return None if tries[0] == 2 else reply

    slow.spoil = second_reply_is_lost
    slow.delay = lambda request: 0.3 if tries[0] == 1 else 0.0  # after the first deadline, before the second
    deployed.serve()
    assert [(line["client"], line["round"]) for line in events_of(deployed.state, "missed")] == [(0, 2), (0, 2)]
    assert len([line for line in events_of(deployed.state, "sent") if line["round"] == 2]) == 9
    assert [line["state"] for line in events_of(deployed.state, "round")] == digests_in_process(deployed.plan)


def test_a_census_answered_during_a_long_round_is_read_after_it(settings: dict[str, Any], tmp_path: Path) -> None:
    """Client 2 comes late and needs a while to answer; client 0 makes each round last until the deadline."""
    deployed = deploy(tmp_path, {**settings, "rounds": 4}, {"min_updates": 1, "max_missed_deadlines": 9})
    node_of(deployed, 0).delay = delayed_in({1, 2, 3, 4}, 5.0)
    late = node_of(deployed, 2)
    late.delay, late.connected = lambda request: 0.1, False

    def comes_in_round_1(request: Message, reply: Message) -> Message:
        late.connected |= from_records(request.content).body.get("round") == 1
        return reply

    node_of(deployed, 1).spoil = comes_in_round_1
    deployed.serve()
    used = [[entry["client"] for entry in record["clients"]] for record in records_of(deployed)]
    assert used == [[1], [1], [1, 2], [1, 2]]


def test_a_node_that_keeps_silent_is_rested_and_healed(settings: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, {**settings, "rounds": 8}, {"max_missed_deadlines": 2})

    def silent_until_round_6(request: Message, reply: Message) -> Message | None:
        return None if from_records(request.content).body.get("round", 6) < 6 else reply

    node_of(deployed, 0).spoil = silent_until_round_6
    deployed.serve()
    asked = [record["round"] for record in records_of(deployed) if 0 in record["selected"]]
    assert asked == [1, 2, 4, 6, 7, 8]  # rested in 3 and 5, each of which took a missed deadline off
    assert [line["missed_deadlines"] for line in events_of(deployed.state, "missed")] == [1, 2, 2]
    assert [entry["client"] for entry in records_of(deployed)[-1]["clients"]] == [0, 1, 2]


def test_a_node_that_leaves_and_returns(settings: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, settings)
    leaver = node_of(deployed, 1)

    def sees(request: Message, reply: Message) -> Message:
        round_ = from_records(request.content).body.get("round")
        if round_ == 1:
            leaver.connected = False
        if round_ == 2:
            leaver.connected = True
        return reply

    node_of(deployed, 2).spoil = sees  # asked last in each round
    deployed.serve()
    assert [line["client"] for line in events_of(deployed.state, "left")] == [1]
    assert [line["client"] for line in events_of(deployed.state, "joined")].count(1) == 2
    used = [[entry["client"] for entry in record["clients"]] for record in records_of(deployed)]
    assert used == [[0, 1, 2], [0, 2], [0, 1, 2]]


@dataclasses.dataclass(frozen=True)
class WithoutClient1(Scaffold):
    """In one process, what client 1 sends is never usable."""

    def finish_client(self, model: Any, data: Any, context: State, facts: Facts) -> tuple[State, State]:
        upload, own = super().finish_client(model, data, context, facts)
        return ({**upload, W: upload[W] * math.nan} if facts.client == 1 else upload), own


def test_a_node_that_is_away_still_counts_in_n(settings: dict[str, Any], tmp_path: Path) -> None:
    """SCAFFOLD's c moves by (1/N) Σ, N = 3, though one of the three never came."""
    deployed = deploy(tmp_path, settings)
    node_of(deployed, 1).connected = False
    deployed.serve()
    config = dataclasses.replace(deployed.plan.config, method=WithoutClient1())
    alone = dataclasses.replace(deployed.plan, config=config)
    assert [line["state"] for line in events_of(deployed.state, "round")] == digests_in_process(alone)
    assert [record["selected"] for record in records_of(deployed)] == [[0, 2]] * 3


@pytest.mark.parametrize("answered", [True, False])
def test_a_node_that_restarts_gets_all_pieces_in_the_next_round(
    answered: bool, tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    """It restarts after its answer in round 1, so the server does not notice; or instead of its answer in round 2."""
    settings = {**tiny_fedbm, "clients": 3, "rounds": 3, "participation": 1.0, "beta": 0.5}
    deployed = deploy(tmp_path, settings)
    node = node_of(deployed, 0)

    def restarts(request: Message, reply: Message) -> Message | None:
        round_ = from_records(request.content).body.get("round")
        if round_ == (1 if answered else 2):
            node.kept.clear()
        return reply if answered or round_ != 2 else None

    node.spoil = restarts
    deployed.serve()
    [line] = events_of(deployed.state, "missed")
    assert (line["client"], line["round"]) == (0, 2)
    lacks, silent = "it does not have a piece that it was expected to have", "no answer within 0.2 s"
    assert line["why"] == (lacks if answered else silent)
    used = [[entry["client"] for entry in record["clients"]] for record in records_of(deployed)]
    assert used == [[0, 1, 2], [1, 2], [0, 1, 2]]


@pytest.mark.parametrize("on_lost_state", ["refuse", "fresh"])
def test_a_node_that_lost_its_clients_state(on_lost_state: str, settings: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, settings, {"on_lost_state": on_lost_state})

    def loses(request: Message, reply: Message) -> Message:
        if from_records(request.content).body.get("round") == 1:
            for path in (tmp_path / "node-0").rglob("clients/*"):
                path.unlink()
        return reply

    node_of(deployed, 0).spoil = loses
    deployed.serve()
    why = {line["why"] for line in events_of(deployed.state, "missed")}
    assert why == ({"it has lost its client's state"} if on_lost_state == "refuse" else set())
