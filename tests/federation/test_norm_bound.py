"""An update much larger than those accepted before is refused; a large hospital's honest one is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from flwr.app import Message
from one_process import Deployed, FakeGrid, Node, deploy, engine_process, events_of, records_of

from fedbm.errors import FedBMError
from fedbm.federation.protocol.flower_records import Envelope, from_records, to_records
from fedbm.federation.protocol.messages import UPLOAD
from fedbm.federation.protocol.packing import pack, unpack
from fedbm.federation.protocol.reply_checks import Accepted, NormHistory


def history(norms: Iterable[tuple[int, float]]) -> NormHistory:
    """A history of one round."""
    return NormHistory({1: list(norms)}, ratio=10.0)


def test_sites_of_one_size_are_held_to_ten_times_their_median() -> None:
    found = history([(50, 1.0), (50, 2.0), (50, 3.0)])
    assert found.bound(2, 50) == 20.0
    found.accept(2, 50, 20.0)
    with pytest.raises(FedBMError, match="the norm of its update is 20.1, above the bound 20: 10 times the usual norm"):
        found.accept(2, 50, 20.1)


@pytest.mark.parametrize(("small", "large", "ratio"), [((30, 4), 1100, 10.5), ((10, 3), 1100, 54.0)])
def test_an_honest_large_hospital_is_not_refused(small: tuple[int, int], large: int, ratio: float) -> None:
    """The ratios that were measured for FedAvg and FedProto."""
    n, count = small
    norms = [(n, 1.0)] * count + [(large, ratio)]
    history(norms).accept(2, large, ratio)


@pytest.mark.parametrize("claimed", [501, 10**4, 10**6, 10**9])
def test_a_claimed_size_raises_the_bound_by_ten_at_most(claimed: int) -> None:
    norms = [(50, 1.0)] * 3
    assert history(norms).bound(2, claimed) == 10 * history(norms).bound(2, 50)


def test_a_small_hospital_among_large_ones_keeps_the_full_bound() -> None:
    norms = [(1000, 5.0)] * 3
    assert history(norms).bound(2, 3) == history(norms).bound(2, 1000) == 50.0


def test_one_huge_update_in_the_first_round_does_not_move_the_bound() -> None:
    assert history([(50, 1.0), (50, 1.0), (50, 1e5)]).bound(2, 50) == 10.0


def test_five_rounds_count_and_an_attempt_that_did_not_count_is_forgotten() -> None:
    accepted: Accepted = {round_: [(50, float(round_))] for round_ in range(1, 9)}
    found = NormHistory(accepted, ratio=10.0)
    found.begin(8)
    assert sorted(accepted) == [3, 4, 5, 6, 7]
    assert found.bound(8, 50) == 50.0
    found.accept(8, 50, 50.0)
    assert found.bound(8, 50) == 50.0  # who answers first in a round does not matter to the others
    assert NormHistory({}, ratio=10.0).bound(1, 50) == math.inf


def settings_of(tiny: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**tiny, "clients": 4, "rounds": 4, "participation": 1.0, "batch": 32, **values}


def multiplied(factor: float) -> Callable[[Message, Message], Message]:
    """Spoil every update of a node: it moves *factor* times as far from the model it was sent."""

    def spoil(request: Message, reply: Message) -> Message:
        found = from_records(reply.content)
        if request.metadata.message_type != "train" or UPLOAD not in found.packed:
            return reply
        sent = {name: v for piece in from_records(request.content).packed.values() for name, v in unpack(piece).items()}
        moved = {
            name: (sent[name] + factor * (value - sent[name])).to(value.dtype) if value.is_floating_point() else value
            for name, value in unpack(found.packed[UPLOAD]).items()
        }
        with engine_process():
            return Message(to_records(Envelope(found.body, {UPLOAD: pack(moved)})), reply_to=request)

    return spoil


def node_of(deployed: Deployed, client: int) -> Node:
    return next(node for node in deployed.grid.nodes.values() if node.config["client"] == client)


def dropped(deployed: Deployed) -> dict[int, list[int]]:
    return {record["round"]: [gone["client"] for gone in record["dropped"]] for record in records_of(deployed)}


def test_a_hundredfold_update_is_refused_from_the_second_round_on(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, settings_of(tiny))
    node_of(deployed, 2).spoil = multiplied(100.0)
    deployed.serve()
    assert dropped(deployed) == {1: [], 2: [2], 3: [2], 4: [2]}
    rejected = events_of(deployed.state, "rejected")
    assert {(line["client"], line["name"], line["key"]) for line in rejected} == {(2, "site 2", "SHA256:2")}
    status = json.loads((deployed.state / "status.json").read_text())
    assert [node["name"] for node in status["nodes"] if node["rejected"]] == ["site 2"]
    assert status["nodes"][2]["rejected"] == f"round 4: {rejected[-1]['why']}"
    assert all("times the usual norm" in line["why"] for line in rejected)


@pytest.mark.parametrize(
    ("method", "norm", "sizes"), [("fedavg", "batch", (4, 4, 4, 51)), ("fednh", "group", (3, 3, 3, 3, 51))]
)
def test_a_hospital_with_most_of_the_images_takes_part(
    tiny: dict[str, Any], tmp_path: Path, method: str, norm: str, sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, list[float]] = {}
    true = NormHistory.accept

    def accept(self: NormHistory, round_: int, n: int, norm: float) -> None:
        seen.setdefault(round_, []).append(norm)
        true(self, round_, n, norm)

    monkeypatch.setattr(NormHistory, "accept", accept)
    settings = settings_of(tiny, method=method, norm=norm, clients=len(sizes), batch=8)
    deployed = deploy(tmp_path, settings, sizes=sizes)
    deployed.serve()
    assert dropped(deployed) == {1: [], 2: [], 3: [], 4: []}
    if method == "fednh":  # without regard to size it would have been refused
        assert max(seen[2]) > 10 * median(seen[1])


class Killed(BaseException):
    """Ends the server as a signal does: nothing catches it."""


class DeadlyGrid(FakeGrid):
    """Kills the server just before it sends the first message of a round."""

    round = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if self.round and any(from_records(message.content).body.get("round") == self.round for message in messages):
            self.round = 0
            raise Killed
        return super().push_messages(messages)


def test_a_server_that_is_killed_and_started_again_refuses_the_same_updates(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    states = []
    for place, killed_in in (("through", 0), ("killed", 3)):
        deployed = deploy(tmp_path / place, settings_of(tiny))
        deployed.grid = grid = DeadlyGrid(deployed.grid.nodes)
        node_of(deployed, 2).spoil = multiplied(100.0)
        grid.round = killed_in
        if killed_in:
            with pytest.raises(Killed):
                deployed.serve()
        deployed.serve()
        assert dropped(deployed) == {1: [], 2: [2], 3: [2], 4: [2]}
        states.append([line["state"] for line in events_of(deployed.state, "round")])
    assert states[0] == states[1]


def test_the_operator_can_set_the_ratio(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = deploy(tmp_path, settings_of(tiny, rounds=2), {"max_norm_ratio": 1e6})
    node_of(deployed, 2).spoil = multiplied(100.0)
    deployed.serve()
    assert dropped(deployed) == {1: [], 2: []}
