"""Requests to many nodes and their replies, each request with the parts its node lacks.

Every open request is looked at in turn, so a slow node holds up nobody else's reply. Replies are handed on in client
order, because uploads are aggregated in that order: memory holds only replies that wait for a lower-numbered client.
A request that is still open at its deadline is looked at once more, then its client has missed the deadline.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedbm.engine.checkpoint import Progress
from fedbm.federation.audit import Audit
from fedbm.federation.options import FederationOptions
from fedbm.federation.protocol.codec import Envelope
from fedbm.federation.protocol.packing import Packed, pack
from fedbm.federation.server.roster import Roster
from fedbm.federation.server.transport import POLL, fetch, send
from fedbm.methods.base import Part, State

if TYPE_CHECKING:
    from flwr.serverapp import Grid

# Seconds that a message outlives its deadline. A reply that came in time must still be there when the server has
# pulled the large replies before it.
EXTRA_LIFETIME_S = 60.0


class Reply(NamedTuple):
    """What came from a client: an envelope, or what went wrong in words, or None by the deadline; and bytes sent."""

    client: int
    content: Envelope | str | None
    sent: int


@dataclass
class Pending:
    """A request without a reply yet."""

    deadline: float
    request_id: str | None = None  # None where the engine did not take it
    sent: int = 0  # bytes
    retried: bool = False  # a node that lacked parts has been sent all of them


class Requests:
    """Ask clients of a roster, and tell each where its own state stands."""

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        own_parts: Mapping[str, State],
        options: FederationOptions,
        progress: Progress,
        checkpoint_every: int,
        audit: Audit,
    ) -> None:
        self._grid, self._roster, self._options, self._audit = grid, roster, options, audit
        self._own_parts, self._rounds, self._checkpoint_every = own_parts, progress.client_rounds, checkpoint_every
        self._packed: dict[str, tuple[int, Packed]] = {}  # part → version, and how it travels
        self._round = 0
        self._before = self._durable = dict(self._rounds)

    def begin(self, round_: int) -> None:
        """A repeated round starts from where the attempt before it did: nobody's update of that one counted."""
        if round_ == self._round:
            self._rounds.clear()
            self._rounds.update(self._before)
            return
        if (round_ - 1) % self._checkpoint_every == 0:  # the round before ended in a checkpoint
            self._durable = dict(self._rounds)
        self._round, self._before = round_, dict(self._rounds)

    def counted(self, client: int) -> None:
        """The client's own state of this round is the one to go on from."""
        self._rounds[client] = self._round

    def replies(
        self, kind: str, round_: int, clients: Sequence[int], parts: Mapping[str, Part]
    ) -> Iterator[Reply | None]:
        """Yield one reply per client in the order of *clients*, and None while waiting.

        A reply belongs to a request by the request's id, so a late reply to an earlier attempt is never read.
        """
        packed = self._pack(parts)
        pending: dict[int, Pending] = {}
        for client in clients:
            pending[client] = Pending(time.monotonic() + self._options.deadline_s)
            self._ask(kind, round_, client, packed, pending[client])
        self._roster.changed()
        order, early = deque(clients), dict[int, Reply]()  # early replies wait for a lower-numbered client
        while pending:
            for client, request in list(pending.items()):
                expired = time.monotonic() >= request.deadline
                found = self._look(request)
                if _lacks_parts(found) and not request.retried and not expired:
                    self._roster.peers[client].holds = {}
                    self._audit.append("lacks", **self._roster.identify(client), round=round_)
                    request.retried = True
                    self._ask(kind, round_, client, packed, request)
                elif found is not None or expired:
                    del pending[client]
                    self._note(client, found, packed)
                    early[client] = Reply(client, found, request.sent)
                    while order and order[0] in early:
                        yield early.pop(order.popleft())
            if pending:
                yield None
                time.sleep(POLL)

    def _look(self, request: Pending) -> Envelope | str | None:
        if request.request_id is None:
            return "the engine did not take the request"
        return fetch(self._grid, request.request_id)

    def _note(self, client: int, found: Envelope | str | None, packed: Mapping[str, Packed]) -> None:
        """Record in the roster what a reply shows of its node."""
        peer = self._roster.peers[client]
        if isinstance(found, Envelope):
            peer.seen("answered")
            if found.body.get("code") == "ok":
                peer.holds = {name: item.digest for name, item in packed.items()}
                self._roster.clear_missed_deadlines(client)
        else:
            peer.state = "silent"
        self._roster.changed()

    def _ask(self, kind: str, round_: int, client: int, packed: Mapping[str, Packed], request: Pending) -> None:
        """Send one node its request with the parts it lacks."""
        peer = self._roster.peers[client]
        lacking = {name: item for name, item in packed.items() if peer.holds.get(name) != item.digest}
        body = {
            "terms": self._roster.terms,
            "round": round_,
            "parts": [{"name": name, "digest": item.digest} for name, item in packed.items()],
            "counted": self._rounds.get(client, 0),
            "durable": self._durable.get(client, 0),
            "fresh": self._options.on_lost_state == "fresh",
            "head": self._audit.head,
        }
        size = sum(item.size for item in lacking.values())
        sent = {name: item.digest for name, item in lacking.items()}
        self._audit.append("sent", request=kind, client=client, round=round_, parts=sent, bytes=size)
        peer.state = "asked"
        lifetime = max(request.deadline - time.monotonic(), 0.0) + EXTRA_LIFETIME_S
        request.request_id = send(self._grid, peer.node, kind, Envelope(body, lacking), lifetime)
        request.sent += size

    def _pack(self, parts: Mapping[str, Part]) -> dict[str, Packed]:
        """Every part as it travels; one whose version is known is not packed again."""
        whole = {**{name: Part(0, state) for name, state in self._own_parts.items()}, **parts}
        for name, part in whole.items():
            if name not in self._packed or self._packed[name][0] != part.version:
                self._packed[name] = part.version, pack(part.state)
        return {name: self._packed[name][1] for name in whole}


def _lacks_parts(found: Envelope | str | None) -> bool:
    return isinstance(found, Envelope) and found.body.get("code") == "lacks"
