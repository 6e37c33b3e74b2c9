"""The nodes behind a Flower grid as a cohort, which the round loop uses like clients in its own process.

All open requests are checked in turn, so a slow node does not delay the replies of others. Replies are returned in
client order, because uploads are aggregated in that order. Only replies that wait for a lower-numbered client are held
in memory. A request that is still open at its deadline is checked once more. Then its client has missed the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbm.engine.checkpoint import Progress
from fedbm.engine.clients.cohort import ClientResult, merge_pieces
from fedbm.engine.evaluate import join_scores, score_confusion
from fedbm.engine.round_record import ModelScores, PersonalScores
from fedbm.engine.run_folder import FORMAT
from fedbm.errors import FedBMError
from fedbm.federation.protocol.flower_records import POLL, Envelope, send
from fedbm.federation.protocol.messages import EVALUATE, SCORED, TRAIN, UPLOAD, CensusOutdated, printable
from fedbm.federation.protocol.packing import Packed, pack
from fedbm.federation.protocol.reply_checks import (
    NormHistory,
    check_counts,
    check_equal,
    read_matrix,
    read_training,
    read_upload,
)
from fedbm.federation.server.roster import Roster
from fedbm.methods.base import Facts, Method, Pieces, State, Upload
from fedbm.runs.run_file_types import Privacy, PrivacyLoss
from fedbm.utils.io import read_json, write_json
from fedbm.utils.json_records import decode
from fedbm.utils.metrics import Array, scores_from_confusion

# Seconds a message is kept after two deadlines. A reply that arrived in time must still be available after the server
# has pulled the large replies before it, and has waited for one that never came.
EXTRA_LIFETIME_S = 60.0


class Reply(NamedTuple):
    """A client's reply: what was read from its answer, or why nothing was."""

    client: int
    found: Any
    rejection: str | None
    sent: int  # bytes
    received: int
    missing: bool  # there is no answer


@dataclass
class FlowerCohort:
    """census(), exchange() and score() over a grid; see fedbm.engine.clients.cohort."""

    method: Method
    roster: Roster
    task_pieces: Pieces
    expected: State  # an upload without values
    progress: Progress
    checkpoint_every: int  # rounds
    privacy_file: Path | None  # if sites add noise
    _round: int = 0

    def __post_init__(self) -> None:
        self.norms = NormHistory(self.progress.accepted_norms, self.roster.options.max_norm_ratio)
        self._before = self._durable = dict(self.progress.client_rounds)  # at the start of the round; at a checkpoint

    def census(self) -> Mapping[int, Facts]:
        clients, joined = self.roster.gather(heal=True), self.roster.joined
        if self.roster.terms["evaluates"] and len(joined) == len(self.roster.nodes):
            for side in SCORED:
                if not any(census.scored[side] for census in joined.values()):
                    raise FedBMError(no_images(side))  # before an update leaves a site for nothing
        return {client: joined[client].facts for client in clients}

    def exchange(self, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        self._begin(round_)
        sent = merge_pieces(pieces)
        for reply in self._replies(TRAIN, round_, clients, pieces, partial(self._read_upload, round_, sent)):
            if reply is None:
                yield None
                continue
            upload = reply.found or Upload(reply.client, 0, {})
            yield ClientResult(upload, reply.rejection, reply.sent, reply.received, reply.missing)

    def close(self) -> None:
        """Do nothing: nodes belong to their sites."""

    def score(self, round_: int, pieces: Pieces) -> Iterator[tuple[ModelScores, int] | None]:
        """Yield the sum of the confusion matrices of all nodes that answer, and None while waiting."""
        sent = 0
        for _ in range(self.roster.options.max_round_attempts):
            clients = self.roster.gather(heal=False)
            found: dict[int, dict[str, Array]] = {}
            for reply in self._replies(EVALUATE, round_, clients, pieces, self._read_matrices):
                if reply is None:
                    yield None
                    continue
                sent += reply.sent
                if reply.rejection is None:
                    found[reply.client] = reply.found
            covered = all(any(side in own for own in found.values()) for side in SCORED)
            enough = len(found) >= self.roster.needed
            if enough and (covered or len(found) == len(clients)):  # a late node may have the images of a split
                scored = {client: own for client, own in found.items() if own}
                yield self._evaluation(round_, scored), sent
                return

    def _begin(self, round_: int) -> None:
        """Start a round. A repeated round starts again from the same states, since no update of it counted."""
        self.norms.begin(round_)
        if round_ == self._round:
            self.progress.client_rounds = dict(self._before)
            return
        if (round_ - 1) % self.checkpoint_every == 0:  # the previous round ended in a checkpoint
            self._durable = dict(self.progress.client_rounds)
        self._round, self._before = round_, dict(self.progress.client_rounds)

    def _replies(
        self, kind: str, round_: int, clients: Sequence[int], pieces: Pieces, read: Callable[[int, Envelope], Any]
    ) -> Iterator[Reply | None]:
        """Yield one reply per client in the order of *clients*, and None while waiting. *read* checks an answer."""
        roster = self.roster
        packed = {name: pack(piece.state) for name, piece in {**self.task_pieces, **pieces}.items()}
        for arrived in self._answers({client: self._ask(kind, round_, client, packed) for client in clients}):
            if arrived is None:
                yield None
                continue
            client, answer, sent = arrived
            found, rejection, received, missing = None, None, 0, isinstance(answer, FedBMError)
            try:
                if isinstance(answer, FedBMError):
                    raise answer
                received = sum(item.size for item in answer.packed.values())
                roster.nodes[client].holds = {name: item.digest for name, item in packed.items()}
                roster.nodes[client].missed = 0
                check_equal(answer.body, terms=roster.terms_digest, client=client, round=round_)
                found = read(client, answer)
            except FedBMError as error:
                rejection = str(error)
                roster.record_failure(client, round_, error, missing, received)
            yield Reply(client, found, rejection, sent, received, missing)

    def _answers(self, requests: dict[int, tuple[str, int]]) -> Iterator[tuple[int, Envelope | FedBMError, int] | None]:
        """Yield each client, its answer or why there is none, and the bytes sent to it; None while waiting.

        *requests* contains the id and the bytes of each client's request. A reply is matched by the id, so a late reply
        to an earlier attempt is never read.
        """
        deadline = time.monotonic() + self.roster.options.deadline_s
        waiting, arrived = dict(requests), dict[int, Envelope | FedBMError]()
        for client, (_, sent) in requests.items():
            while client not in arrived:
                for other, (request_id, _) in list(waiting.items()):
                    if (answer := self.roster.read_reply(other, request_id, deadline)) is not None:
                        del waiting[other]
                        arrived[other] = answer
                if client not in arrived:
                    yield None
                    time.sleep(POLL)
            yield client, arrived.pop(client), sent

    def _ask(self, kind: str, round_: int, client: int, packed: Mapping[str, Packed]) -> tuple[str, int]:
        """Send one node its request, with the pieces that it does not have; return the id and the bytes."""
        roster, node = self.roster, self.roster.nodes[client]
        missing = {name: item for name, item in packed.items() if node.holds.get(name) != item.digest}
        body = {
            "terms": roster.terms,
            "round": round_,
            "parts": [{"name": name, "digest": item.digest} for name, item in packed.items()],
            "counted": self.progress.client_rounds.get(client, 0),  # the client continues from this round
            "durable": self._durable.get(client, 0),
            "fresh": roster.options.on_lost_state == "fresh",
            "head": roster.audit.head,
        }
        size = sum(item.size for item in missing.values())
        digests = {name: item.digest for name, item in missing.items()}
        roster.audit.append("sent", request=kind, client=client, round=round_, parts=digests, bytes=size)
        node.state = "asked"
        lifetime = 2 * roster.options.deadline_s + EXTRA_LIFETIME_S
        return send(roster.grid, node.id, kind, Envelope(body, missing), lifetime), size

    def _read_upload(self, round_: int, sent: State, client: int, answer: Envelope) -> Upload:
        """Return a client's upload; raise FedBMError if anything is wrong with the answer."""
        facts, loss, options = self.roster.joined[client].facts, None, self.roster.options
        packed = answer.packed.get(UPLOAD, Packed("", {}))
        training = read_training(answer.body)
        if self.privacy_file:  # the privacy is spent even if the upload is rejected
            loss = save_privacy(self.privacy_file, options.dp_delta, client, training.privacy)
        if training.n != facts.n:
            raise CensusOutdated(f"it trained on {printable(training.n)} images, but its census has {facts.n}")
        state, norm = read_upload(packed, self.expected, sent, options.max_norm)
        check_counts(state, sent, self.method, facts)
        self.norms.accept(round_, facts.n, norm)
        if training.keeps:
            self.progress.client_rounds[client] = round_
        self.roster.audit.append(
            "received",
            **self.roster.identify(client),
            round=round_,
            bytes=packed.size,
            digest=packed.digest,
            privacy=loss,
            head=printable(answer.body.get("head")),
        )
        return Upload(client, facts.n, state, training.mean_losses, training.seconds)

    def _read_matrices(self, client: int, answer: Envelope) -> dict[str, Array]:
        """Return a node's confusion matrices by side; each must count as many images as its census announced."""
        sent = answer.body.get("confusion")
        if not isinstance(sent, dict):
            raise FedBMError("it sent no confusion matrices")
        classes, images = len(self.roster.classes), self.roster.joined[client].scored
        found = {side: read_matrix(sent[side], classes) for side in SCORED if side in sent}
        if self.method.personalises and "personal" in answer.body:
            found["personal"] = read_matrix(answer.body["personal"], classes)
        for side, matrix in found.items():
            announced = images["test" if side == "personal" else side]
            if (total := int(matrix.sum())) != announced:
                raise CensusOutdated(f"it scored {total} images of {side}, but its census announced {announced}")
        return found

    def _evaluation(self, round_: int, found: Mapping[int, Mapping[str, Array]]) -> ModelScores:
        zero = np.zeros((len(self.roster.classes),) * 2, dtype=np.int64)
        sites = [found.get(client, {}) for client in range(self.roster.options.nodes)]
        matrices = {side: np.stack([own.get(side, zero) for own in sites]) for side in SCORED}
        for side in SCORED:
            if not matrices[side].any():
                raise FedBMError(f"round {round_}: {no_images(side)}")
        personal = {
            str(client): scores_from_confusion(own["personal"])["accuracy"]
            for client, own in found.items()
            if "personal" in own and own["personal"].any()
        }
        nodes = [
            {**self.roster.identify(client), "images": {side: int(own[side].sum()) for side in SCORED if side in own}}
            for client, own in sorted(found.items())
        ]
        self.roster.audit.append("scored", round=round_, nodes=nodes, images=int(matrices["test"].sum()))
        scores = join_scores({side: (score_confusion(own.sum(axis=0)), own) for side, own in matrices.items()})
        mean = PersonalScores(float(np.mean(list(personal.values()))), personal) if personal else None
        return replace(scores, personal=mean, scored=tuple(sorted(found)))


def no_images(side: str) -> str:
    return (
        f'no node has {side} images to score. Add some, set evaluate = "server", or ask the sites: scores = false or '
        "min_per_class in a site's policy keeps its scores there"
    )


def read_privacy_file(path: Path, delta: float) -> Privacy:
    """Return the privacy loss of each site at δ, as its node last reported it."""
    if not path.exists():
        return Privacy(delta, {})
    found = decode(Privacy, read_json(path), path, "; remove it: nodes report their losses again")
    if found.delta != delta:  # a node that does not answer again could not report its loss at the other δ
        raise FedBMError(f"{path} has the losses at dp_delta = {found.delta:g}; resume the run with this dp_delta")
    return found


def save_privacy(path: Path, delta: float, client: int, reported: PrivacyLoss | None) -> dict[str, Any]:
    """Write and return a client's privacy loss. This is done with every answer, so that a killed server loses none."""
    if reported is None:
        raise FedBMError("it reported no privacy loss")
    loss = {**reported, "bound": "none" if reported.epsilon_all_runs is None else "finite"}
    clients = {name: dict(known) for name, known in read_privacy_file(path, delta).clients.items()}
    write_json(path, {"format": FORMAT, "delta": delta, "clients": {**clients, str(client): loss}})
    return loss
