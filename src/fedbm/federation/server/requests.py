"""Send requests to several nodes, each with the pieces that its node needs, and collect the replies.

All open requests are checked in turn, so a slow node does not delay the replies of others. Replies are returned in
client order, because uploads are aggregated in that order. Only replies that wait for a lower-numbered client are held
in memory. A request that is still open at its deadline is checked once more. Then its client has missed the deadline.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedbm.engine.checkpoint import Progress
from fedbm.federation.protocol.flower_records import POLL, Envelope, fetch, send
from fedbm.federation.protocol.packing import Packed, pack
from fedbm.federation.server.roster import Roster
from fedbm.federation.server.run_status import utc_now
from fedbm.methods.base import Piece, Pieces, State

# Seconds a message is kept after its deadline, in addition to another deadline_s. A reply that arrived in time must
# still be available after the server has pulled the large replies before it, and has waited for one that never came.
EXTRA_LIFETIME_S = 60.0


class Reply(NamedTuple):
    """A client's reply."""

    client: int
    content: Envelope | str | None  # or an error in words, or None if the deadline has passed
    sent: int  # bytes

    @property
    def answer(self) -> Envelope | None:
        """The node's answer, or None if it is missing or a refusal."""
        found = self.content
        return found if isinstance(found, Envelope) and found.body.get("code") == "ok" else None


@dataclass
class Pending:
    """A request without a reply yet."""

    deadline: float
    request_id: str | None = None  # None if Flower did not accept it
    sent: int = 0  # bytes
    retried: bool = False  # all pieces were sent again to a node that did not have them


class Requests:
    """Ask the clients of a roster. Each request contains the round that last counted for its client."""

    def __init__(
        self, roster: Roster, task_pieces: Mapping[str, State], progress: Progress, checkpoint_every: int
    ) -> None:
        self._roster, self._grid, self._options, self._audit = roster, roster.grid, roster.options, roster.audit
        self._task_pieces, self._rounds, self._checkpoint_every = task_pieces, progress.client_rounds, checkpoint_every
        self._packed: dict[str, tuple[int, Packed]] = {}  # piece → version and packed state
        self._round = 0
        self._before = self._durable = dict(self._rounds)

    def begin(self, round_: int) -> None:
        """Start a round. A repeated round starts again from the same states, since no update of it counted."""
        if round_ == self._round:
            self._rounds.clear()
            self._rounds.update(self._before)
            return
        if (round_ - 1) % self._checkpoint_every == 0:  # the previous round ended in a checkpoint
            self._durable = dict(self._rounds)
        self._round, self._before = round_, dict(self._rounds)

    def count(self, client: int) -> None:
        """Record that the client continues from its state of this round."""
        self._rounds[client] = self._round

    def replies(self, kind: str, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[Reply | None]:
        """Yield one reply per client in the order of *clients*, and None while waiting.

        A reply is matched by the id of its request, so a late reply to an earlier attempt is never read.
        """
        packed = self._pack(pieces)
        pending: dict[int, Pending] = {}
        for client in clients:
            pending[client] = Pending(time.monotonic() + self._options.deadline_s)
            self._ask(kind, round_, client, packed, pending[client])
        self._roster.write_status()
        order, early = deque(clients), dict[int, Reply]()  # early replies wait for a lower-numbered client
        while pending:
            for client, request in list(pending.items()):
                expired = time.monotonic() >= request.deadline
                found: Envelope | str | None = "Flower did not accept the request"
                if request.request_id is not None:
                    found = fetch(self._grid, request.request_id)
                lacks_pieces = isinstance(found, Envelope) and found.body.get("code") == "lacks"
                if lacks_pieces and not request.retried and not expired:
                    self._roster.peers[client].holds = {}
                    self._audit.append("lacks", **self._roster.identify(client), round=round_)
                    request.retried = True
                    self._ask(kind, round_, client, packed, request)
                elif found is not None or expired:
                    del pending[client]
                    early[client] = Reply(client, found, request.sent)
                    self._update_roster(early[client], packed)
                    while order and order[0] in early:
                        yield early.pop(order.popleft())
            if pending:
                yield None
                time.sleep(POLL)

    def _update_roster(self, reply: Reply, packed: Mapping[str, Packed]) -> None:
        peer = self._roster.peers[reply.client]
        if isinstance(reply.content, Envelope):
            peer.state, peer.last_seen = "answered", utc_now()
        else:
            peer.state = "silent"
        if reply.answer is not None:
            peer.holds = {name: item.digest for name, item in packed.items()}
            del self._roster.missed_deadlines[reply.client]
        self._roster.write_status()

    def _ask(self, kind: str, round_: int, client: int, packed: Mapping[str, Packed], request: Pending) -> None:
        """Send one node its request, with the pieces that it does not have."""
        peer = self._roster.peers[client]
        missing = {name: item for name, item in packed.items() if peer.holds.get(name) != item.digest}
        body = {
            "terms": self._roster.terms,
            "round": round_,
            "parts": [{"name": name, "digest": item.digest} for name, item in packed.items()],
            "counted": self._rounds.get(client, 0),
            "durable": self._durable.get(client, 0),
            "fresh": self._options.on_lost_state == "fresh",
            "head": self._audit.head,
        }
        size = sum(item.size for item in missing.values())
        digests = {name: item.digest for name, item in missing.items()}
        self._audit.append("sent", request=kind, client=client, round=round_, parts=digests, bytes=size)
        peer.state = "asked"
        lifetime = max(request.deadline - time.monotonic(), 0.0) + self._options.deadline_s + EXTRA_LIFETIME_S
        request.request_id = send(self._grid, peer.node, kind, Envelope(body, missing), lifetime)
        request.sent += size

    def _pack(self, pieces: Pieces) -> dict[str, Packed]:
        """Return every piece packed. A piece with a known version is not packed again."""
        whole = {**{name: Piece(0, state) for name, state in self._task_pieces.items()}, **pieces}
        for name, piece in whole.items():
            if name not in self._packed or self._packed[name][0] != piece.version:
                self._packed[name] = piece.version, pack(piece.state)
        return {name: self._packed[name][1] for name in whole}
