"""Who is there: nodes asked by the census, taken in or refused by name, and the deadlines that each has missed.

A node is known by its key: the registry has the name and client number of every Flower node id, and a census that
claims others is refused. A node that has missed too many deadlines is left out of a round. That takes one off its
count, and a usable answer takes all off. A refusal counts as a missed deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.options import FederationOptions
from fedbm.federation.protocol.codec import Envelope
from fedbm.federation.protocol.messages import CENSUS, REFUSED, Census, CensusRules, read_census, sentence
from fedbm.federation.protocol.reply_checks import same
from fedbm.federation.server.registry import Registered
from fedbm.federation.server.transport import POLL, fetch, send
from fedbm.utils.io import digest_of

if TYPE_CHECKING:
    from flwr.serverapp import Grid

# Answers to the census are read between rounds. A round may last longer than the deadline of one request, so an answer
# must stay readable for longer than that.
CENSUS_LIFETIME_S = 24 * 3600.0


@dataclass
class Peer:
    """A node that takes part."""

    node: int
    census: Census
    holds: dict[str, str]  # part → digest of the one it has
    state: str = "ready"  # ready | asked | answered | silent | resting
    last_seen: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def seen(self, state: str) -> None:
        self.state, self.last_seen = state, datetime.now(UTC).isoformat(timespec="seconds")


class Roster:
    """The nodes behind a grid, as far as they have answered the census with these terms."""

    def __init__(
        self,
        grid: Grid,
        registry: Mapping[int, Registered],
        terms: Mapping[str, Any],
        rules: CensusRules,
        options: FederationOptions,
        audit: Audit,
        changed: Callable[[Roster], None] = lambda roster: None,
    ) -> None:
        self._grid, self.terms, self._options, self._audit = grid, terms, options, audit
        self._registry, self._by_client = registry, {node.client: node for node in registry.values()}
        self.digest, self.classes, self._rules = digest_of(terms), rules.classes, rules
        self._changed = changed
        self.peers: dict[int, Peer] = {}
        self.missed_deadlines: dict[int, int] = {}
        self.rejections: dict[int, str] = {}  # client → why its latest unusable answer was left out
        self.refused: dict[int, tuple[str, str]] = {}  # node id → its name and why it cannot take part
        self._asked: dict[int, tuple[str, float]] = {}  # node id → its open census request, and when it is asked again
        self._first = True

    @property
    def needed(self) -> int:
        """Without so many nodes no round can count."""
        return min(self._options.min_updates, self._options.nodes)

    def gather(self, heal: bool) -> list[int]:
        """The clients that can be asked now. The first time all nodes are waited for, later as many as are needed.

        With *heal* this is a round that a node is left out of.
        """
        wanted = self._options.nodes if self._first else self.needed
        self._first = False
        deadline = time.monotonic() + self._options.deadline_s
        self._look_round()
        while len(self.peers) < wanted and time.monotonic() < deadline:
            time.sleep(POLL)
            self._look_round()
        most = self._options.max_missed_deadlines
        rested = {client for client in self.peers if self.missed_deadlines.get(client, 0) >= most}
        if len(self.peers) - len(rested) < self.needed:  # better a slow node than none
            rested = set()
        for client, peer in self.peers.items():
            peer.state = "resting" if client in rested else "ready"
        for client in rested:
            self.missed_deadlines[client] -= heal
        self.changed()
        return [client for client in sorted(self.peers) if client not in rested]

    def identify(self, client: int) -> dict[str, Any]:
        """Return what an audit line contains of a client: number, name, Flower node id and key fingerprint."""
        return self._by_client[client].identify()

    def reject(self, client: int, round_: int, why: str, **facts: Any) -> None:
        """Name a node whose answer is left out, in the audit and in the status."""
        self._audit.append("rejected", **self.identify(client), round=round_, **facts, why=why)
        self.rejections[client] = f"round {round_}: {why}"
        self.changed()

    def changed(self) -> None:
        self._changed(self)

    def count_missed_deadline(self, client: int) -> int:
        self.missed_deadlines[client] = self.missed_deadlines.get(client, 0) + 1
        return self.missed_deadlines[client]

    def clear_missed_deadlines(self, client: int) -> None:
        self.missed_deadlines.pop(client, None)

    def forget(self, client: int) -> None:
        """Its census is no longer true: it is asked again."""
        del self.peers[client]

    def _look_round(self) -> None:
        nodes = set(self._grid.get_node_ids())
        for client in [client for client, peer in self.peers.items() if peer.node not in nodes]:
            del self.peers[client]
            self._audit.append("left", **self.identify(client))
        self.refused = {node: why for node, why in self.refused.items() if node in nodes}
        self._asked = {node: request for node, request in self._asked.items() if node in nodes}
        known = {peer.node for peer in self.peers.values()} | self.refused.keys() | self._asked.keys()
        for node in sorted(nodes - known):
            if node not in self._registry:
                self._refuse(node, "no node of server.toml has its key; it was not registered by this server")
                continue
            request = Envelope({"terms": self.terms, "evaluates": self._rules.evaluates, "head": self._audit.head})
            if (sent := send(self._grid, node, CENSUS, request, CENSUS_LIFETIME_S)) is not None:
                self._asked[node] = sent, time.monotonic() + self._options.deadline_s
        for node, (request_id, deadline) in list(self._asked.items()):
            expired = time.monotonic() >= deadline
            reply = fetch(self._grid, request_id)
            if reply is None and expired:
                reply = f"no answer to the census within {self._options.deadline_s:g} s"
            if reply is not None:
                del self._asked[node]
                self._introduce(node, reply)
        self.changed()

    def _introduce(self, node: int, reply: Envelope | str) -> None:
        """Take a node in, or refuse it by name and in a sentence."""
        owner = self._registry[node]
        if isinstance(reply, str):
            self._audit.append("unreachable", **owner.identify(), why=reply)
            return
        body = reply.body
        try:
            if body.get("code") != "ok":
                raise FedBMError(sentence(body, self.classes))
            found = read_census(body, self._rules)
            same(body, "terms", self.digest)
            if (found.client, found.name) != (owner.client, owner.name):
                raise FedBMError(
                    f'it claims to be client {found.client}, "{found.name}", but its key is registered for client '
                    f'{owner.client}, "{owner.name}"'
                )
        except FedBMError as error:
            self._refuse(node, str(error))
            return
        self.peers[found.client] = Peer(node, found, found.holds)
        self._audit.append(
            "joined",
            **owner.identify(),
            n=found.facts.n,
            **found.scored,
            told=["classes", "n", *found.scored, *(["label_counts"] if self._rules.shares_counts else [])],
            versions=found.versions,
            head=found.head,
        )

    def _refuse(self, node: int, why: str) -> None:
        """Keep a node out and tell it why. It is named by its key, whatever it calls itself."""
        owner = self._registry.get(node)
        self.refused[node] = owner.name if owner else f"node {node}", why
        self._audit.append("refused", **(owner.identify() if owner else {"node": str(node)}), why=why)
        if owner:  # a node that nobody registered is told nothing
            send(self._grid, node, REFUSED, Envelope({"why": why, "head": self._audit.head}), CENSUS_LIFETIME_S)
