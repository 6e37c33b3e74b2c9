"""Requests to many nodes and their replies, in client order, each with the parts its node lacks.

Replies are pulled one at a time and in order, so the server holds one upload however many nodes there are. The deadline
is one for all: when it has passed, each of the rest is looked for once more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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


class Reply(NamedTuple):
    """What came from a client: an envelope, or what went wrong in words, or None by the deadline; and bytes sent."""

    client: int
    content: Envelope | str | None
    sent: int


class Courier:
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
        """One reply per client, in order; None while one is waited for."""
        packed = self._pack(parts)
        asked = {client: self._ask(kind, round_, client, packed) for client in clients}
        self._roster.changed()
        deadline = time.monotonic() + self._options.deadline_s
        for client in clients:
            peer = self._roster.peers[client]
            request, size = asked[client]
            again = False
            while True:
                found = fetch(self._grid, request) if request is not None else "the engine did not take the request"
                if isinstance(found, Envelope) and found.body.get("code") == "lacks" and not again:
                    again, peer.holds = True, {}
                    self._audit.append("lacks", **self._roster.identify(client), round=round_)
                    request, more = self._ask(kind, round_, client, packed)
                    size += more
                elif found is not None or time.monotonic() >= deadline:
                    break
                else:
                    yield None
                    time.sleep(POLL)
            if isinstance(found, Envelope):
                peer.seen("answered")
                if found.body.get("code") == "ok":
                    peer.holds = {name: item.digest for name, item in packed.items()}
                    self._roster.forgive(client)
            else:
                peer.state = "silent"
            self._roster.changed()
            yield Reply(client, found, size)

    def _ask(self, kind: str, round_: int, client: int, packed: Mapping[str, Packed]) -> tuple[str | None, int]:
        """Send one node its request with the parts it lacks; the request's id, and the bytes of those parts."""
        peer = self._roster.peers[client]
        lacking = {name: item for name, item in packed.items() if peer.holds.get(name) != item.digest}
        body = {
            "terms": self._roster.terms,
            "round": round_,
            "parts": [{"name": name, "digest": item.digest} for name, item in packed.items()],
            "counted": self._rounds.get(client, 0),
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
