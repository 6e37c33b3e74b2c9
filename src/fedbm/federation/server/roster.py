"""The nodes of a run: who answered the census, who is refused and why, and how many deadlines each has missed.

A node is identified by its key: the registry has the name and client number of every Flower node id, and a census with
another name or number is refused. A node with too many missed deadlines is left out of one round, which reduces its
count by one. A usable answer sets the count to 0. A refusal counts as a missed deadline, and the node is asked for its
census again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.serverapp import Grid

from fedbm.engine.round_loop import count_selected
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.registration import Registered
from fedbm.federation.protocol.flower_records import POLL, Envelope, fetch, send
from fedbm.federation.protocol.messages import CENSUS, REFUSED, CensusOutdated, SiteRefusal, printable, versions
from fedbm.federation.protocol.reply_checks import Census, check_equal, read_census
from fedbm.federation.server.run_setup import Agreement
from fedbm.federation.server.run_status import StatusFile, utc_now
from fedbm.utils.io import digest_of

# Answers to the census are read between rounds, so Flower must keep an answer for longer than a round lasts.
CENSUS_LIFETIME_S = 24 * 3600.0
CENSUS_POLL_S = 30.0  # how often a node that does not take part is asked again


@dataclass
class Node:
    """A registered node."""

    id: int  # Flower's
    owner: Registered
    holds: Mapping[str, str] = field(default_factory=dict)  # piece → digest of the node's copy
    state: str = "ready"  # ready | asked | answered | silent | resting, while it takes part
    last_seen: str | None = None
    missed: int = 0  # deadlines in a row
    rejected: str | None = None  # the round of its latest rejected answer, and why
    request_id: str | None = None  # its open census request
    deadline: float = 0.0  # of that request
    ask_at: float = 0.0  # when it is asked next
    refusal: str = ""  # why it does not take part
    unapproved: bool = False  # a person must still approve the run there

    def row(self, client: int | None, state: str) -> dict[str, Any]:
        """Return the node for the status."""
        seen = {"missed_deadlines": self.missed, "last_seen": self.last_seen, "rejected": self.rejected}
        return {"client": client, "name": self.owner.name, "state": state, **seen}

    def start_again(self) -> Node:
        """Return the node without anything that ends when it joins or leaves."""
        return Node(self.id, self.owner, last_seen=self.last_seen, missed=self.missed, rejected=self.rejected)


class Roster:
    """The nodes behind a grid. *joined* contains those that have answered the census with the terms of the run."""

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
        nodes = sorted(registry.items(), key=lambda item: item[1].client)
        self.nodes = {owner.client: Node(id_, owner) for id_, owner in nodes if owner.client < self.options.nodes}
        self.joined: dict[int, Census] = {}
        self._strangers: set[int] = set()
        selected = count_selected(self.options.nodes, agreement.config.train.participation)
        self.needed = min(self.options.min_updates, selected)  # nodes without which no round can count
        self._first = True
        status.list_nodes = self.list_nodes

    def gather(self, heal: bool) -> list[int]:
        """Return the clients that can be asked now. Wait for all registered nodes at first, later for those needed.

        The wait has no limit while a person must still approve the run at a needed node. If fewer nodes than needed are
        there, none is asked: their updates could not count, but would have left their sites. With *heal*, leaving a
        node out reduces its missed deadlines by one.
        """
        wanted = len(self.nodes) if self._first else self.needed
        self._first = False
        deadline = time.monotonic() + self.options.deadline_s
        self._update()
        while len(self.joined) < wanted:
            unapproved = any(node.unapproved for node in self.nodes.values())
            if time.monotonic() >= deadline and (not unapproved or len(self.joined) >= self.needed):
                break
            time.sleep(POLL)
            self._update()
        resting = {client for client in self.joined if self.nodes[client].missed >= self.options.max_missed_deadlines}
        if len(self.joined) - len(resting) < self.needed:  # a slow node is better than none
            resting = set()
        for client in self.joined:
            self.nodes[client].state = "resting" if client in resting else "ready"
        for client in resting:
            self.nodes[client].missed -= heal
        return sorted(self.joined.keys() - resting) if len(self.joined) >= self.needed else []

    def read_reply(self, client: int, request_id: str, deadline: float) -> Envelope | FedBMError | None:
        """Return a node's answer, the error that explains why there is none, or None if it may still arrive."""
        node, expired = self.nodes[client], time.monotonic() >= deadline
        try:
            reply = fetch(self.grid, request_id)
            if reply is None and expired:
                raise FedBMError(f"no answer within {self.options.deadline_s:g} s")
        except FedBMError as error:
            node.state = "silent"
            return error
        if reply is None:
            return None
        node.state, node.last_seen = "answered", utc_now()
        return reply if reply.body.get("code") == "ok" else SiteRefusal(reply.body, self.classes)

    def identify(self, client: int) -> dict[str, Any]:
        """Return the fields that identify a client in an audit line."""
        return self.nodes[client].owner.identify()

    def record_failure(self, client: int, round_: int, error: FedBMError, missing: bool, received: int) -> None:
        """Record a missing or rejected answer. If the node's census no longer holds, ask for it again."""
        node, who = self.nodes[client], self.identify(client)
        if missing:
            node.missed, node.holds = node.missed + 1, {}  # it may have been restarted
            self.audit.append("missed", **who, round=round_, why=str(error), missed_deadlines=node.missed)
        else:
            node.rejected = f"round {round_}: {error}"
            self.audit.append("rejected", **who, round=round_, why=str(error), bytes=received)
        if isinstance(error, CensusOutdated):
            del self.joined[client]
            self._ask(node)

    def list_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes for the status: those that take part, then those that are refused."""
        joined = [node.row(client, node.state) for client, node in self.nodes.items() if client in self.joined]
        refused = [node for client, node in self.nodes.items() if client not in self.joined and node.refusal]
        return [*joined, *(node.row(None, f"refused: {node.refusal}") for node in refused)]

    def _update(self) -> None:
        """Drop nodes that have left, ask new ones for their census, and read the answers."""
        connected = set(self.grid.get_node_ids())
        for stranger in connected - {node.id for node in self.nodes.values()} - self._strangers:
            self._strangers.add(stranger)
            why = "this server did not register it, or its client number is not below nodes"
            self.audit.append("refused", node=str(stranger), why=why)
        for client, node in self.nodes.items():
            if node.id not in connected:
                if self.joined.pop(client, None):
                    self.audit.append("left", **self.identify(client))
                self.nodes[client] = node.start_again()
            elif client not in self.joined:
                if node.request_id is None and time.monotonic() >= node.ask_at:
                    self._ask(node)
                if node.request_id is not None:
                    self._read_census(client, node, node.request_id)
        self._status.write()

    def _ask(self, node: Node) -> None:
        request = Envelope({"terms": self.terms, "head": self.audit.head})
        node.request_id = send(self.grid, node.id, CENSUS, request, CENSUS_LIFETIME_S)
        node.deadline = time.monotonic() + self.options.deadline_s

    def _read_census(self, client: int, node: Node, request_id: str) -> None:
        """Admit a node that has answered the census, or refuse it with a reason."""
        reply = self.read_reply(client, request_id, node.deadline)
        if reply is None:
            return
        try:
            if isinstance(reply, FedBMError):
                raise reply
            check_equal(reply.body, terms=self.terms_digest)
            census = read_census(reply.body, self.terms, self._shares_counts, self._max_samples)
            if (census.client, census.name) != (client, node.owner.name):
                raise FedBMError(
                    f'it claims to be client {printable(census.client)}, "{printable(census.name)}", but its key is '
                    f'registered for client {client}, "{node.owner.name}"'
                )
        except FedBMError as error:
            node.request_id, node.ask_at = None, time.monotonic() + CENSUS_POLL_S
            node.unapproved = isinstance(error, SiteRefusal) and error.code == "approval"
            self._refuse(node, str(error))
            return
        self.nodes[client] = replace(node.start_again(), holds=census.holds)
        self.joined[client] = census
        self.audit.append(
            "joined",
            **self.identify(client),
            n=census.n,
            **census.scored,
            fields=["classes", "n", *census.scored, *(["label_counts"] if self._shares_counts else [])],
            versions={what: printable(census.versions.get(what)) for what in versions()},
            head=printable(census.head),
        )

    def _refuse(self, node: Node, why: str) -> None:
        """Refuse a node, and send it the reason if it is a new one."""
        if node.refusal != why:
            node.refusal = why
            self.audit.append("refused", **node.owner.identify(), why=why)
            send(self.grid, node.id, REFUSED, Envelope({"why": why, "head": self.audit.head}), CENSUS_LIFETIME_S)
