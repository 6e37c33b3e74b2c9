"""The nodes behind a Flower grid as a cohort, which the round loop uses like clients in its own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbm.engine.clients.cohort import ClientResult, merge_pieces
from fedbm.engine.evaluate import score_confusion
from fedbm.engine.round_record import ModelScores, PersonalScores
from fedbm.engine.run_folder import FORMAT
from fedbm.errors import FedBMError
from fedbm.federation.protocol.flower_records import Envelope
from fedbm.federation.protocol.messages import EVALUATE, SCORED, SITE_RULES, TRAIN, UPLOAD, explain_refusal, printable
from fedbm.federation.protocol.reply_checks import (
    Form,
    NormHistory,
    check_equal,
    counts_fit,
    read_losses,
    read_matrix,
    read_privacy,
    read_upload,
)
from fedbm.federation.server.requests import Reply, Requests
from fedbm.federation.server.roster import Roster
from fedbm.methods.base import Facts, Method, Pieces, State, Upload
from fedbm.runs.run_file_types import Privacy
from fedbm.utils.io import read_json, write_json
from fedbm.utils.json_records import decode
from fedbm.utils.metrics import Array, scores_from_confusion


@dataclass
class FlowerCohort:
    """census(), exchange() and score() over a grid; see fedbm.engine.clients.cohort."""

    method: Method
    roster: Roster
    requests: Requests
    expected: Mapping[str, Form]
    norms: NormHistory
    privacy_file: Path | None  # if sites add noise

    def census(self) -> Mapping[int, Facts]:
        clients = self.roster.gather(heal=True)
        if self.roster.terms["evaluates"] and len(self.roster.peers) == self.roster.registered:
            announced = [peer.census.scored for peer in self.roster.peers.values()]
            for side in SCORED:
                if not any(one[side] for one in announced):  # stop before an update leaves a site for nothing
                    raise FedBMError(no_images(side))
        return {client: self.roster.peers[client].census.facts for client in clients}

    def exchange(self, round_: int, clients: Sequence[int], pieces: Pieces) -> Iterator[ClientResult | None]:
        self.requests.begin(round_)
        self.norms.begin(round_)
        sent = merge_pieces(pieces)
        for reply in self.requests.replies(TRAIN, round_, clients, pieces):
            yield None if reply is None else self._answer(round_, reply, sent)

    def close(self) -> None:
        """Do nothing: nodes belong to their sites."""

    def _answer(self, round_: int, reply: Reply, sent: State) -> ClientResult:
        """Check a reply, and return it for the round loop, with the reason if it is rejected."""
        client = reply.client
        facts = self.roster.peers[client].census.facts
        empty = Upload(client, facts.n, {})
        if reply.answer is None:
            return ClientResult(empty, self._record_missed(round_, reply), reply.sent, 0, missing=True)
        body, packed = reply.answer.body, reply.answer.packed.get(UPLOAD)
        received = packed.size if packed is not None else 0
        try:
            check_equal(body, terms=self.roster.terms_digest, client=client, round=round_)
            if body.get("n") != facts.n:
                del self.roster.peers[client]  # its census is outdated, so it is asked again
                raise FedBMError(f"it trained on {printable(body.get('n'))} images, but its census has {facts.n}")
            losses, seconds = read_losses(body)
            loss = None
            if self.privacy_file:  # the privacy is spent even if the upload is rejected
                loss = read_privacy(body)
                save_privacy(self.privacy_file, self.roster.options.dp_delta, client, loss)
            if packed is None:
                raise FedBMError("it sent no tensors")
            state, norm = read_upload(packed, self.expected, sent, self.roster.options.max_norm)
            if not counts_fit(state, sent, self.method, facts):
                del self.roster.peers[client]
                raise FedBMError("its numbers of images per class differ from its census")
            self.norms.accept(round_, facts.n, norm)
        except FedBMError as error:
            self.roster.reject(client, round_, str(error), bytes=received)
            return ClientResult(empty, str(error), reply.sent, received)
        if body.get("keeps") is True:
            self.requests.count(client)
        self.roster.audit.append(
            "received",
            **self.roster.identify(client),
            round=round_,
            bytes=received,
            digest=packed.digest,
            privacy=loss,
            head=printable(body.get("head")),
        )
        return ClientResult(Upload(client, facts.n, state, losses, seconds), None, reply.sent, received)

    def _record_missed(self, round_: int, reply: Reply) -> str:
        """Count a missed deadline, and return why there is no usable answer."""
        content = reply.content
        if isinstance(content, Envelope):
            why = explain_refusal(content.body, self.roster.classes)
            if content.body.get("code") in SITE_RULES:  # until they allow it, no other site trains in vain
                del self.roster.peers[reply.client]
        else:
            why = content or f"no answer within {self.roster.options.deadline_s:g} s"
        missed, who = self.roster.missed_deadlines, self.roster.identify(reply.client)
        missed[reply.client] += 1
        self.roster.audit.append("missed", **who, round=round_, why=why, missed_deadlines=missed[reply.client])
        self.roster.write_status()
        return why

    def score(self, round_: int, pieces: Pieces) -> Iterator[tuple[ModelScores, int] | None]:
        """Yield the sum of the confusion matrices of all nodes that answer, and None while waiting."""
        sent = 0
        for _ in range(self.roster.options.max_round_attempts):
            clients = self.roster.gather(heal=False)
            found: dict[int, dict[str, Array]] = {}
            for reply in self.requests.replies(EVALUATE, round_, clients, pieces):
                if reply is None:
                    yield None
                    continue
                sent += reply.sent
                if reply.answer is None:
                    self._record_missed(round_, reply)
                    continue
                try:
                    found[reply.client] = self._matrices(round_, reply.client, reply.answer.body)
                except FedBMError as error:
                    self.roster.reject(reply.client, round_, str(error))
            covered = all(any(side in own for own in found.values()) for side in SCORED)
            enough = clients and len(found) >= min(self.roster.needed, len(clients))
            if enough and (covered or len(found) == len(clients)):  # a late node may have the images of a split
                scored = {client: own for client, own in found.items() if own}
                yield self._evaluation(round_, scored), sent
                return

    def _matrices(self, round_: int, client: int, body: Mapping[str, Any]) -> dict[str, Array]:
        """Return a node's confusion matrices by side; each must count as many images as its census announced."""
        check_equal(body, terms=self.roster.terms_digest, client=client, round=round_)
        sent = body.get("confusion")
        if not isinstance(sent, dict):
            raise FedBMError("it sent no confusion matrices")
        classes, images = len(self.roster.classes), self.roster.peers[client].census.scored
        found = {side: read_matrix(sent[side], classes) for side in SCORED if side in sent}
        if self.method.personalises and "personal" in body:
            found["personal"] = read_matrix(body["personal"], classes)
        for side, matrix in found.items():
            announced = images["test" if side == "personal" else side]
            if (total := int(matrix.sum())) != announced:
                del self.roster.peers[client]  # its census is outdated, so it is asked again
                raise FedBMError(f"it scored {total} images of {side}, but its census announced {announced}")
        return found

    def _evaluation(self, round_: int, found: Mapping[int, Mapping[str, Array]]) -> ModelScores:
        zero = np.zeros((len(self.roster.classes),) * 2, dtype=np.int64)
        sums = {side: sum((own[side] for own in found.values() if side in own), zero) for side in SCORED}
        for side, total in sums.items():
            if not total.sum():
                raise FedBMError(f"round {round_}: {no_images(side)}")
        personal = {
            str(client): scores_from_confusion(own["personal"])["accuracy"]
            for client, own in found.items()
            if "personal" in own and own["personal"].sum()
        }
        nodes = [
            {**self.roster.identify(client), "images": {side: int(own[side].sum()) for side in SCORED if side in own}}
            for client, own in sorted(found.items())
        ]
        by_site = [found.get(client, {}).get("test", zero) for client in range(self.roster.options.nodes)]
        self.roster.audit.append("scored", round=round_, nodes=nodes, images=int(sums["test"].sum()))
        return ModelScores(
            val=score_confusion(sums["val"]),
            test=score_confusion(sums["test"]),
            confusion=tuple(map(tuple, sums["test"].tolist())),
            by_source=tuple(tuple(map(tuple, matrix.tolist())) for matrix in by_site),
            personal=PersonalScores(float(np.mean(list(personal.values()))), personal) if personal else None,
            scored=tuple(sorted(found)),
        )


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


def save_privacy(path: Path, delta: float, client: int, loss: Mapping[str, Any]) -> None:
    """Write a client's privacy loss. This is done with every answer, so that a killed server loses none."""
    clients = {**read_privacy_file(path, delta).clients, str(client): loss}
    plain = {name: dict(known) for name, known in clients.items()}
    write_json(path, {"format": FORMAT, "delta": delta, "clients": plain})
