"""The nodes of a run: who answered the census, who is refused and why, and how many deadlines each has missed.

A node is identified by its key: the registry has the name and client number of every Flower node id, and a census with
another name or number is refused. A node with too many missed deadlines is left out of one round, which reduces its
count by one. A usable answer sets the count to 0. A refusal counts as a missed deadline; if it is by the rules of the
site, the node leaves, and is asked for its census again.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedbm.engine.round_loop import count_selected
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.registration import Registered
from fedbm.federation.protocol.flower_records import POLL, Envelope, fetch, send
from fedbm.federation.protocol.messages import CENSUS, REFUSED, Census, explain_refusal, read_census
from fedbm.federation.protocol.reply_checks import check_equal
from fedbm.federation.server.run_setup import Agreement
from fedbm.federation.server.run_status import StatusFile, utc_now
from fedbm.utils.io import digest_of

if TYPE_CHECKING:
    from flwr.serverapp import Grid

# Answers to the census are read between rounds, so Flower must keep an answer for longer than a round lasts.
CENSUS_LIFETIME_S = 24 * 3600.0
APPROVAL_POLL_S = 30.0  # how often a node is asked again while a person must approve the run there
RETRY_POLL_S = 5.0  # how long a node without a readable answer is left alone, since it can answer at once every time
NODE_KEYS = ("client", "name", "state", "missed_deadlines", "last_seen", "rejected")  # of a node in the status
REFUSAL_POLL_S = 300.0  # how often a node is asked again after any other refusal, its own or the server's


@dataclass
class Peer:
    """A node that takes part."""

    node: int
    census: Census
    holds: dict[str, str]  # piece → digest of the node's copy
    state: str = "ready"  # ready | asked | answered | silent | resting
    last_seen: str = field(default_factory=utc_now)


@dataclass
class Candidate:
    """A connected node that does not take part, or not yet."""

    request_id: str | None = None  # its open census request
    deadline: float = 0.0  # of that request
    ask_at: float = 0.0  # when it is asked next
    refusal: str = ""  # why it was last refused
    unapproved: bool = False  # a person must still approve the run there


class Roster:
    """The nodes behind a grid that have answered the census with the terms of a run."""

    def __init__(
        self,
        grid: Grid,
        agreement: Agreement,
        registry: Mapping[int, Registered],
        max_samples: int,
        audit: Audit,
        status: StatusFile,
    ) -> None:
        self.grid, self.options, self.audit = grid, agreement.options, audit
        self.terms, self.terms_digest = agreement.terms, digest_of(agreement.terms)
        self.classes, self._max_samples, self._status = agreement.task.classes, max_samples, status
        self._shares_counts = "label_counts" in agreement.config.method.shares
        self._registry, self._by_client = registry, {node.client: node for node in registry.values()}
        self.peers: dict[int, Peer] = {}
        self.missed_deadlines: Counter[int] = Counter()
        self.rejections: dict[int, str] = {}  # client → why its latest unusable answer was rejected
        self._candidates: dict[int, Candidate] = {}  # by node id
        selected = count_selected(self.options.nodes, agreement.config.train.participation)
        self.needed = min(self.options.min_updates, selected)  # nodes without which no round can count
        self.registered = sum(node.client < self.options.nodes for node in registry.values())
        self._first = True

    def gather(self, heal: bool) -> list[int]:
        """Return the clients that can be asked now. Wait for all registered nodes at first, later for those needed.

        The wait has no limit while a person must still approve the run at a needed node. If fewer nodes than needed are
        there, none is asked: their updates could not count, but would have left their sites. With *heal*, leaving a
        node out reduces its missed deadlines by one.
        """
        wanted = self.registered if self._first else self.needed
        self._first = False
        deadline = time.monotonic() + self.options.deadline_s
        self._update()
        while len(self.peers) < wanted:
            unapproved = any(candidate.unapproved for candidate in self._candidates.values())
            if time.monotonic() >= deadline and (not unapproved or len(self.peers) >= self.needed):
                break
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
        rows: list[tuple[Any, ...]] = []
        for client, peer in sorted(self.peers.items()):
            missed, rejected = self.missed_deadlines[client], self.rejections.get(client)
            rows.append((client, peer.census.name, peer.state, missed, peer.last_seen, rejected))
        for node, candidate in self._candidates.items():
            if candidate.refusal:
                owner = self._registry.get(node)
                name = owner.name if owner else f"node {node}"
                rows.append((None, name, f"refused: {candidate.refusal}", 0, None, None))
        self._status.write(nodes=[dict(zip(NODE_KEYS, row, strict=True)) for row in rows])

    def _update(self) -> None:
        """Drop nodes that have left, ask new ones for their census, and read the answers."""
        connected = set(self.grid.get_node_ids())
        for client in [client for client, peer in self.peers.items() if peer.node not in connected]:
            del self.peers[client]
            self.audit.append("left", **self.identify(client))
        waiting = sorted(connected - {peer.node for peer in self.peers.values()})
        self._candidates = {node: self._candidates.get(node, Candidate()) for node in waiting}
        for node, candidate in list(self._candidates.items()):
            if candidate.request_id is None and time.monotonic() >= candidate.ask_at:
                self._ask(node, candidate)
            if candidate.request_id is not None:
                expired = time.monotonic() >= candidate.deadline
                reply = fetch(self.grid, candidate.request_id)
                if reply is None and expired:
                    reply = f"no answer to the census within {self.options.deadline_s:g} s"
                if reply is not None:
                    candidate.request_id = None
                    self._admit(node, candidate, reply)
        self.write_status()

    def _ask(self, node: int, candidate: Candidate) -> None:
        """Ask a node for its census. A node that this server did not register is refused."""
        if node not in self._registry:
            candidate.ask_at = math.inf
            self._refuse(node, "its key is not the key of a node in server.toml; this server did not register it")
            return
        request = Envelope({"terms": self.terms, "head": self.audit.head})
        candidate.request_id = send(self.grid, node, CENSUS, request, CENSUS_LIFETIME_S)
        candidate.deadline = time.monotonic() + self.options.deadline_s

    def _admit(self, node: int, candidate: Candidate, reply: Envelope | str) -> None:
        """Admit a node, or refuse it with a reason."""
        owner = self._registry[node]
        if isinstance(reply, str):
            candidate.ask_at = time.monotonic() + RETRY_POLL_S
            self.audit.append("unreachable", **owner.identify(), why=reply)
            return
        code = reply.body.get("code")
        candidate.unapproved = code == "approval"
        candidate.ask_at = time.monotonic() + (APPROVAL_POLL_S if candidate.unapproved else REFUSAL_POLL_S)
        try:
            if code != "ok":
                raise FedBMError(explain_refusal(reply.body, self.classes))
            found = read_census(reply.body, self.terms, self._shares_counts, self.options.nodes, self._max_samples)
            check_equal(reply.body, terms=self.terms_digest)
            if (client := found.facts.client, found.name) != (owner.client, owner.name):
                raise FedBMError(
                    f'it claims to be client {client}, "{found.name}", but its key is registered for client '
                    f'{owner.client}, "{owner.name}"'
                )
        except FedBMError as error:
            self._refuse(node, str(error))
            return
        del self._candidates[node]
        self.peers[owner.client] = Peer(node, found, found.holds)
        self.audit.append(
            "joined",
            **owner.identify(),
            n=found.facts.n,
            **found.scored,
            fields=["classes", "n", *found.scored, *(["label_counts"] if self._shares_counts else [])],
            versions=found.versions,
            head=found.head,
        )

    def _refuse(self, node: int, why: str) -> None:
        """Refuse a node, and send it the reason if it is a new one."""
        candidate, owner = self._candidates[node], self._registry.get(node)
        if candidate.refusal == why:
            return
        candidate.refusal = why
        self.audit.append("refused", **(owner.identify() if owner else {"node": str(node)}), why=why)
        if owner:  # an unregistered node gets no reason
            send(self.grid, node, REFUSED, Envelope({"why": why, "head": self.audit.head}), CENSUS_LIFETIME_S)
