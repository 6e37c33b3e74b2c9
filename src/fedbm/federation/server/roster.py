"""The nodes of a run: who answered the census, who is refused and why, and how many deadlines each has missed.

A node is identified by its key: the registry has the name and client number of every Flower node id, and a census with
other ones is refused. A node with too many missed deadlines is left out of one round, which reduces its count by one.
A usable answer sets the count to 0. A refusal counts as a missed deadline.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedbm.engine.round_loop import count_selected
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.registration import Registered
from fedbm.federation.protocol.codec import POLL, Envelope, fetch, send
from fedbm.federation.protocol.messages import CENSUS, REFUSED, Census, CensusRules, explain_refusal, read_census
from fedbm.federation.protocol.reply_checks import check_equal
from fedbm.federation.server.run_setup import Agreement
from fedbm.federation.server.run_status import StatusFile, utc_now
from fedbm.utils.io import digest_of

if TYPE_CHECKING:
    from flwr.serverapp import Grid

# Answers to the census are read between rounds. A round can last longer than the deadline of one request, so an answer
# must stay readable for longer than that.
CENSUS_LIFETIME_S = 24 * 3600.0
APPROVAL_POLL_S = 30.0  # how often a node is asked again while a person must approve the run there
REFUSAL_POLL_S = 300.0  # how often a node that refused for another reason is asked again


@dataclass
class Peer:
    """A node that takes part."""

    node: int
    census: Census
    holds: dict[str, str]  # part → digest of the node's copy
    state: str = "ready"  # ready | asked | answered | silent | resting
    last_seen: str = field(default_factory=utc_now)


class Roster:
    """The nodes behind a grid that have answered the census with the terms of a run."""

    def __init__(
        self,
        grid: Grid,
        agreement: Agreement,
        registry: Mapping[int, Registered],
        rules: CensusRules,
        audit: Audit,
        status: StatusFile,
    ) -> None:
        self.grid, self.options, self.audit = grid, agreement.options, audit
        self.terms, self.terms_digest = agreement.terms, digest_of(agreement.terms)
        self._registry, self._by_client = registry, {node.client: node for node in registry.values()}
        self.classes, self._rules, self._status = rules.classes, rules, status
        self.peers: dict[int, Peer] = {}
        self.missed_deadlines: Counter[int] = Counter()
        self.rejections: dict[int, str] = {}  # client → why its latest unusable answer was rejected
        self.refused: dict[int, tuple[str, str]] = {}  # node id → its name, and why it cannot take part
        self._asked: dict[int, tuple[str, float]] = {}  # node id → its open census request, and when that expires
        self._ask_again: dict[int, float] = {}  # id of a node that refused the run → when it is asked again
        self._reasons: dict[int, str] = {}  # node id → why it was last refused, until it is admitted or leaves
        self._unapproved: set[int] = set()  # nodes that last answered that a person must approve the run
        self._needed = min(
            self.options.min_updates, count_selected(self.options.nodes, agreement.config.train.participation)
        )
        self._first = True

    @property
    def needed(self) -> int:
        """The number of nodes without which no round can count."""
        return self._needed

    def gather(self, heal: bool) -> list[int]:
        """Return the clients that can be asked now. Wait for all nodes the first time, later for those needed.

        The wait has no limit while a person must still approve the run at a needed node. If fewer nodes
        than needed are there, none is asked: their updates could not count, but would have left their sites.
        With *heal*, leaving a node out reduces its missed deadlines by one.
        """
        wanted = self.options.nodes if self._first else self.needed
        self._first = False
        deadline = time.monotonic() + self.options.deadline_s
        self._update()
        while len(self.peers) < wanted and (
            time.monotonic() < deadline or (self._unapproved and len(self.peers) < self.needed)
        ):
            time.sleep(POLL)
            self._update()
        limit = self.options.max_missed_deadlines
        resting = {client for client in self.peers if self.missed_deadlines[client] >= limit}
        if len(self.peers) - len(resting) < self.needed:  # a slow node is better than none
            resting = set()
        for client, peer in self.peers.items():
            peer.state = "resting" if client in resting else "ready"
        for client in resting:
            self.missed_deadlines[client] -= heal
        self.write_status()
        return [client for client in sorted(self.peers) if client not in resting and len(self.peers) >= self.needed]

    def identify(self, client: int) -> dict[str, Any]:
        """Return the fields that identify a client in an audit line."""
        return self._by_client[client].identify()

    def reject(self, client: int, round_: int, why: str, **facts: Any) -> None:
        """Record a rejected answer in the audit and in the status."""
        self.audit.append("rejected", **self.identify(client), round=round_, **facts, why=why)
        self.rejections[client] = f"round {round_}: {why}"
        self.write_status()

    def write_status(self) -> None:
        """Write the nodes to the status: those that take part, then those that are refused."""
        keys = ("client", "name", "state", "missed_deadlines", "last_seen", "rejected")
        rows: list[tuple[Any, ...]] = [
            (c, peer.census.name, peer.state, self.missed_deadlines[c], peer.last_seen, self.rejections.get(c))
            for c, peer in sorted(self.peers.items())
        ]
        rows += [(None, name, f"refused: {why}", 0, None, None) for name, why in self.refused.values()]
        self._status.write(nodes=[dict(zip(keys, row, strict=True)) for row in rows])

    def _update(self) -> None:
        """Drop nodes that have left, ask new ones for their census, and read the answers."""
        nodes = set(self.grid.get_node_ids())
        for client in [client for client, peer in self.peers.items() if peer.node not in nodes]:
            del self.peers[client]
            self.audit.append("left", **self.identify(client))
        now = time.monotonic()
        due = [node for node, again in self._ask_again.items() if node not in nodes or now >= again]
        for node in due:
            del self._ask_again[node]
        self._unapproved &= nodes
        self._reasons = {node: why for node, why in self._reasons.items() if node in nodes}
        self.refused = {node: why for node, why in self.refused.items() if node in nodes and node not in due}
        self._asked = {node: request for node, request in self._asked.items() if node in nodes}
        known = {peer.node for peer in self.peers.values()} | self.refused.keys() | self._asked.keys()
        for node in sorted(nodes - known):
            if node not in self._registry:
                self._refuse(node, "its key is not the key of a node in server.toml; this server did not register it")
                continue
            request = Envelope({"terms": self.terms, "head": self.audit.head})
            if (sent := send(self.grid, node, CENSUS, request, CENSUS_LIFETIME_S)) is not None:
                self._asked[node] = sent, time.monotonic() + self.options.deadline_s
        for node, (request_id, deadline) in list(self._asked.items()):
            expired = time.monotonic() >= deadline
            reply = fetch(self.grid, request_id)
            if reply is None and expired:
                reply = f"no answer to the census within {self.options.deadline_s:g} s"
            if reply is not None:
                del self._asked[node]
                self._admit(node, reply)
        self.write_status()

    def _admit(self, node: int, reply: Envelope | str) -> None:
        """Admit a node, or refuse it with a reason."""
        owner = self._registry[node]
        if isinstance(reply, str):
            self.audit.append("unreachable", **owner.identify(), why=reply)
            return
        body = reply.body
        code = body.get("code")
        self._unapproved.discard(node)
        if code == "approval":
            self._unapproved.add(node)
        if code != "ok":
            self._ask_again[node] = time.monotonic() + (APPROVAL_POLL_S if code == "approval" else REFUSAL_POLL_S)
        try:
            if code != "ok":
                raise FedBMError(explain_refusal(body, self.classes))
            found = read_census(body, self._rules)
            check_equal(body, terms=self.terms_digest)
            if (found.client, found.name) != (owner.client, owner.name):
                raise FedBMError(
                    f'it claims to be client {found.client}, "{found.name}", but its key is registered for client '
                    f'{owner.client}, "{owner.name}"'
                )
        except FedBMError as error:
            self._refuse(node, str(error), silently=self._reasons.get(node) == str(error))
            self._reasons[node] = str(error)
            return
        self._reasons.pop(node, None)
        self.peers[found.client] = Peer(node, found, found.holds)
        self.audit.append(
            "joined",
            **owner.identify(),
            n=found.facts.n,
            **found.scored,
            fields=["classes", "n", *found.scored, *(["label_counts"] if self._rules.shares_counts else [])],
            versions=found.versions,
            head=found.head,
        )

    def _refuse(self, node: int, why: str, silently: bool = False) -> None:
        """Refuse a node and send it the reason, unless *silently*. Its name comes from its key, not its answer."""
        owner = self._registry.get(node)
        self.refused[node] = owner.name if owner else f"node {node}", why
        if silently:
            return
        self.audit.append("refused", **(owner.identify() if owner else {"node": str(node)}), why=why)
        if owner:  # an unregistered node gets no reason
            send(self.grid, node, REFUSED, Envelope({"why": why, "head": self.audit.head}), CENSUS_LIFETIME_S)
