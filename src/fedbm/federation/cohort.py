"""The cohort of nodes behind a Flower grid: the round loop asks it as it asks clients in its own process.

A node is known by the client number in its own configuration, since the engine's node ids are random. It is asked with
what it lacks, has a deadline to answer, and gets a strike when it does not; with too many it is left out of a round,
which takes one strike off it again. Uploads are pulled in client order, one at a time: the server's memory holds one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbm.engine.checkpoint import Progress
from fedbm.engine.cohort import Answer
from fedbm.engine.evaluate import from_matrices
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.checks import Form, read_upload
from fedbm.federation.mail import fetch, send
from fedbm.federation.options import FederationOptions
from fedbm.federation.packing import Packed, pack
from fedbm.federation.protocol import CENSUS, EVALUATE, REFUSALS, TRAIN, UPLOAD, Census, read_census
from fedbm.federation.replies import read_losses, read_matrix, same
from fedbm.federation.wire import Envelope
from fedbm.files import digest_of
from fedbm.methods.base import Facts, Method, Part, State, Task, Upload
from fedbm.metrics import from_confusion

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL = 0.3  # seconds between looks for a reply


@dataclass
class Peer:
    """A node that takes part."""

    node: int
    census: Census
    holds: dict[str, str]  # part → digest of the one it has
    state: str = "ready"  # ready | asked | answered | silent | resting
    last_seen: str = field(default_factory=lambda: _now())


class FlowerCohort:
    """census(), exchange() and score() over a grid; see fedbm.engine.cohort."""

    def __init__(
        self,
        grid: Grid,
        method: Method,
        task: Task,
        terms: Mapping[str, Any],
        own_parts: Mapping[str, State],
        expected: Mapping[str, Form],
        options: FederationOptions,
        progress: Progress,
        checkpoint_every: int,
        audit: Audit,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._grid, self._method, self._task, self._options = grid, method, task, options
        self._terms, self._terms_digest = dict(terms), digest_of(terms)
        self._own_parts, self._expected = own_parts, expected
        self._progress, self._checkpoint_every = progress, checkpoint_every
        self._audit, self.changed = audit, changed
        self.peers: dict[int, Peer] = {}
        self.strikes: dict[int, int] = {}
        self.refused: dict[int, tuple[str, str]] = {}  # node id → its name and why it cannot take part
        self._asked: dict[int, str] = {}  # node id → the census request it has not answered yet
        self._packed: dict[str, tuple[int, Packed]] = {}  # part → version and how it travels
        self._first, self._round = True, 0
        self._before = self._durable = dict(progress.client_rounds)

    # --- who is there -------------------------------------------------------------------------------------------------

    def census(self) -> Mapping[int, Facts]:
        """Those that can be asked now. The first time all nodes are waited for, later only as many as a round needs."""
        wanted = self._options.nodes if self._first else self._needed
        self._first = False
        deadline = time.monotonic() + self._options.deadline_s
        self._look_round()
        while len(self.peers) < wanted and time.monotonic() < deadline:
            time.sleep(POLL)
            self._look_round()
        rested = {client for client in self.peers if self.strikes.get(client, 0) >= self._options.strikes}
        if len(self.peers) - len(rested) < self._needed:  # better a slow node than none
            rested = set()
        for client, peer in self.peers.items():
            peer.state = "resting" if client in rested else "ready"
        for client in rested:
            self.strikes[client] -= 1
        self.changed()
        return {client: self.peers[client].census.facts for client in sorted(self.peers) if client not in rested}

    @property
    def _needed(self) -> int:
        return min(self._options.min_answers, self._options.nodes)

    def _look_round(self) -> None:
        nodes = set(self._grid.get_node_ids())
        for client in [client for client, peer in self.peers.items() if peer.node not in nodes]:
            self._audit.append("left", client=client, name=self.peers.pop(client).census.name)
        self.refused = {node: why for node, why in self.refused.items() if node in nodes}
        self._asked = {node: request for node, request in self._asked.items() if node in nodes}
        known = {peer.node for peer in self.peers.values()} | self.refused.keys() | self._asked.keys()
        for node in sorted(nodes - known):
            request = Envelope({"terms": self._terms, "head": self._audit.head})
            if (sent := send(self._grid, node, CENSUS, request, self._options.deadline_s)) is not None:
                self._asked[node] = sent
        for node, request_id in list(self._asked.items()):
            if (reply := fetch(self._grid, request_id)) is not None:
                del self._asked[node]
                self._introduce(node, reply)
        self.changed()

    def _introduce(self, node: int, reply: Envelope | str) -> None:
        """Take a node in, or refuse it by name and in a sentence."""
        if isinstance(reply, str):
            self._audit.append("unreachable", why=reply)
            return
        body = reply.body
        try:
            if (code := body.get("code")) != "ok":
                raise FedBMError(self._sentence(code, body))
            shares = "label_counts" in self._method.shares
            found = read_census(body, shares, self._task.classes, self._options.nodes)
            same(body, "terms", self._terms_digest)
            if found.client in self.peers:
                raise FedBMError(f"client {found.client} is there already: two nodes have the same number")
        except FedBMError as error:
            name = str(body.get("name", "a node"))[:60]
            self.refused[node] = name, str(error)
            self._audit.append("refused", name=name, why=str(error))
            return
        self.peers[found.client] = Peer(node, found, found.holds)
        told = ["n", "classes", *(["label_counts"] if shares else [])]
        self._audit.append(
            "joined", client=found.client, name=found.name, n=found.facts.n, told=told, versions=found.versions,
            head=found.head,
        )  # fmt: skip

    def _sentence(self, code: Any, body: Mapping[str, Any]) -> str:
        why = REFUSALS.get(str(code), "answered with a code that is not known")
        theirs = body.get("versions")
        if code in ("protocol", "version") and isinstance(theirs, dict):
            mine = self._terms["versions"]
            return f"it {why}: it has {_plain(theirs.get('fedbm'))}, the server {mine['fedbm']}; install the same"
        if code == "classes" and isinstance(body.get("classes"), list):
            unknown = [_plain(name) for name in body["classes"] if name not in self._task.classes]
            return f"it {why}: {', '.join(unknown[:3])}; the run has {', '.join(self._task.classes)}"
        return f"it {why}"

    # --- training -----------------------------------------------------------------------------------------------------

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[Answer | None]:
        self._begin(round_)
        sent = {name: value for part in parts.values() for name, value in part.state.items()}
        for found in self._replies(TRAIN, round_, clients, parts):
            if found is None:
                yield None
                continue
            client, reply, size = found
            yield self._answer(round_, client, reply, size, sent)

    def _begin(self, round_: int) -> None:
        """Where clients stand: a repeated round starts from where the attempt before it did."""
        rounds = self._progress.client_rounds
        if round_ == self._round:
            rounds.clear()
            rounds.update(self._before)
            return
        if (round_ - 1) % self._checkpoint_every == 0:  # the round before ended in a checkpoint
            self._durable = dict(rounds)
        self._round, self._before = round_, dict(rounds)

    def _answer(self, round_: int, client: int, reply: Envelope | str | None, size: int, sent: State) -> Answer:
        """A reply as the round loop takes it: checked, or with what is wrong with it."""
        peer = self.peers[client]
        facts = peer.census.facts
        nothing = Upload(client, facts.n, {})
        if not isinstance(reply, Envelope) or reply.body.get("code") != "ok":
            return Answer(nothing, self._missed(round_, client, reply), size, 0, missing=True)
        packed = reply.packed.get(UPLOAD)
        received = packed.size if packed is not None else 0
        try:
            body = reply.body
            for key, value in (("terms", self._terms_digest), ("client", client), ("round", round_)):
                same(body, key, value)
            if body.get("n") != facts.n:
                del self.peers[client]  # its data are others than those it told of: the census asks it again
                raise FedBMError(f"it trained on {_plain(body.get('n'))} images, but told of {facts.n}")
            losses, seconds = read_losses(body)
            if packed is None:
                raise FedBMError("it sent no tensors")
            state = read_upload(packed, self._expected, sent, self._options.max_norm)
        except FedBMError as error:
            self._audit.append("rejected", client=client, round=round_, bytes=received, why=str(error))
            return Answer(nothing, str(error), size, received)
        if body.get("keeps") is True:
            self._progress.client_rounds[client] = round_
        head = _plain(body.get("head"))
        self._audit.append("received", client=client, round=round_, bytes=received, digest=packed.digest, head=head)
        return Answer(Upload(client, facts.n, state, losses, seconds), None, size, received)

    def _missed(self, round_: int, client: int, reply: Envelope | str | None) -> str:
        """Why no usable answer came, with a strike for it."""
        self.strikes[client] = self.strikes.get(client, 0) + 1
        if isinstance(reply, Envelope):
            why = self._sentence(reply.body.get("code"), reply.body)
        else:
            why = reply or f"no answer within {self._options.deadline_s:g} s"
            self.peers[client].state = "silent"
        self._audit.append("missed", client=client, round=round_, why=why, strikes=self.strikes[client])
        self.changed()
        return why

    # --- scoring ------------------------------------------------------------------------------------------------------

    def score(self, round_: int, parts: Mapping[str, Part]) -> Iterator[dict[str, Any] | None]:
        """Confusion matrices of every node's own images, summed; who did not answer is not in the sum."""
        for _ in range(self._options.attempts):
            clients = sorted(self.census())
            found: dict[int, Mapping[str, Any]] = {}
            answered = 0
            for item in self._replies(EVALUATE, round_, clients, parts):
                if item is None:
                    yield None
                    continue
                client, reply, _ = item
                if not isinstance(reply, Envelope) or reply.body.get("code") != "ok":
                    self._missed(round_, client, reply)
                    continue
                try:
                    same(reply.body, "terms", self._terms_digest)
                    same(reply.body, "round", round_)
                    matrices = self._matrices(reply.body)
                except FedBMError as error:
                    self._audit.append("rejected", client=client, round=round_, why=str(error))
                    continue
                answered += 1
                if matrices:
                    found[client] = matrices
            if clients and answered >= min(self._needed, len(clients)):
                yield self._evaluation(round_, found)
                return

    def _matrices(self, body: Mapping[str, Any]) -> dict[str, Any]:
        classes = len(self._task.classes)
        told = body.get("confusion")
        if not isinstance(told, dict):
            raise FedBMError("it sent no confusion matrices")
        found = {side: read_matrix(told[side], classes) for side in ("val", "test") if side in told}
        if self._method.personalises and "personal" in body:
            found["personal"] = read_matrix(body["personal"], classes)
        return found

    def _evaluation(self, round_: int, found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        zero = np.zeros((len(self._task.classes),) * 2, dtype=np.int64)
        sums = {side: sum((m[side] for m in found.values() if side in m), zero) for side in ("val", "test")}
        for side, total in sums.items():
            if not total.sum():
                raise FedBMError(
                    f'round {round_}: no node has {side} images to score on; give some, or say evaluate = "server"'
                )
        own = {
            str(client): from_confusion(m["personal"])["accuracy"]
            for client, m in found.items()
            if "personal" in m and m["personal"].sum()
        }
        self._audit.append("scored", round=round_, clients=sorted(found), images=int(sums["test"].sum()))
        return {
            "val": from_matrices([sums["val"]]),
            "test": from_matrices([sums["test"]]),
            "confusion": sums["test"].tolist(),
            "personal": {"accuracy": float(np.mean(list(own.values()))), "clients": own} if own else None,
            "scored": sorted(found),
        }

    # --- requests and replies -----------------------------------------------------------------------------------------

    def _replies(
        self, kind: str, round_: int, clients: Sequence[int], parts: Mapping[str, Part]
    ) -> Iterator[tuple[int, Envelope | str | None, int] | None]:
        """(client, reply or what went wrong or None, bytes sent), in client order; None while one is waited for."""
        packed = self._pack(parts)
        asked = {client: self._ask(kind, round_, client, packed) for client in clients}
        self.changed()
        deadline = time.monotonic() + self._options.deadline_s
        for client in clients:
            peer = self.peers[client]
            request, size = asked[client]
            again = False
            while True:
                reply = fetch(self._grid, request) if request is not None else "the engine did not take the request"
                if isinstance(reply, Envelope) and reply.body.get("code") == "lacks" and not again:
                    again, peer.holds = True, {}
                    self._audit.append("lacks", client=client, round=round_)
                    request, more = self._ask(kind, round_, client, packed)
                    size += more
                elif reply is not None or time.monotonic() >= deadline:
                    break
                else:
                    yield None
                    time.sleep(POLL)
            if isinstance(reply, Envelope):
                peer.state, peer.last_seen = "answered", _now()
                if reply.body.get("code") == "ok":
                    peer.holds = {name: item.digest for name, item in packed.items()}
                    self.strikes.pop(client, None)
            self.changed()
            yield client, reply, size

    def _ask(self, kind: str, round_: int, client: int, packed: Mapping[str, Packed]) -> tuple[str | None, int]:
        """Send one node its request with the parts it lacks; the request's id, and the bytes of those parts."""
        peer = self.peers[client]
        lacking = {name: item for name, item in packed.items() if peer.holds.get(name) != item.digest}
        body = {
            "terms": self._terms,
            "round": round_,
            "parts": [{"name": name, "digest": item.digest} for name, item in packed.items()],
            "counted": self._progress.client_rounds.get(client, 0),
            "durable": self._durable.get(client, 0),
            "fresh": self._options.lost_state == "fresh",
            "head": self._audit.head,
        }
        size = sum(item.size for item in lacking.values())
        sent = {name: item.digest for name, item in lacking.items()}
        self._audit.append("sent", request=kind, client=client, round=round_, parts=sent, bytes=size)
        peer.state = "asked"
        return send(self._grid, peer.node, kind, Envelope(body, lacking), self._options.deadline_s), size

    def _pack(self, parts: Mapping[str, Part]) -> dict[str, Packed]:
        """Every part as it travels; one whose version is known is not packed again."""
        whole = {**{name: Part(0, state) for name, state in self._own_parts.items()}, **parts}
        for name, part in whole.items():
            if name not in self._packed or self._packed[name][0] != part.version:
                self._packed[name] = part.version, pack(part.state)
        return {name: self._packed[name][1] for name in whole}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: Any) -> str:
    """What a node said, fit for a sentence: short and printable."""
    return "".join(c if c.isprintable() else "?" for c in str(value))[:70]
