"""The cohort of nodes behind a Flower grid: the round loop asks it as it asks clients in its own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbm.engine.clients.base import ClientResult
from fedbm.engine.evaluate import score_confusion
from fedbm.engine.records import ModelScores, PersonalScores
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.options import FederationOptions
from fedbm.federation.protocol.codec import Envelope
from fedbm.federation.protocol.messages import EVALUATE, SCORED, TRAIN, UPLOAD, plain, sentence
from fedbm.federation.protocol.reply_checks import read_losses, read_matrix, same
from fedbm.federation.protocol.upload_checks import Form, read_upload
from fedbm.federation.server.norm_history import NormHistory
from fedbm.federation.server.privacy_report import PrivacyReport
from fedbm.federation.server.requests import Reply, Requests
from fedbm.federation.server.roster import Roster
from fedbm.methods.base import Facts, Method, Part, State, Upload
from fedbm.utils.metrics import Array, from_confusion


class FlowerCohort:
    """census(), exchange() and score() over a grid; see fedbm.engine.clients.base."""

    def __init__(
        self,
        method: Method,
        roster: Roster,
        requests: Requests,
        expected: Mapping[str, Form],
        options: FederationOptions,
        audit: Audit,
        norms: NormHistory,
        privacy: PrivacyReport | None = None,
    ) -> None:
        self._method, self._roster, self._requests = method, roster, requests
        self._expected, self._options, self._audit, self._norms = expected, options, audit, norms
        self._privacy = privacy

    def census(self) -> Mapping[int, Facts]:
        return {client: self._roster.peers[client].census.facts for client in self._roster.gather(heal=True)}

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[ClientResult | None]:
        self._requests.begin(round_)
        self._norms.begin(round_)
        sent = {name: value for part in parts.values() for name, value in part.state.items()}
        for reply in self._requests.replies(TRAIN, round_, clients, parts):
            yield None if reply is None else self._make_result(round_, reply, sent)

    def close(self) -> None:
        """Nothing to end: nodes belong to their sites."""

    def _make_result(self, round_: int, reply: Reply, sent: State) -> ClientResult:
        """A reply as the round loop takes it: checked, or with what is wrong with it."""
        client, content = reply.client, reply.content
        facts = self._roster.peers[client].census.facts
        nothing = Upload(client, facts.n, {})
        if not isinstance(content, Envelope) or content.body.get("code") != "ok":
            return ClientResult(nothing, self._missed(round_, reply), reply.sent, 0, missing=True)
        body, packed = content.body, content.packed.get(UPLOAD)
        received = packed.size if packed is not None else 0
        try:
            for key, value in (("terms", self._roster.digest), ("client", client), ("round", round_)):
                same(body, key, value)
            if body.get("n") != facts.n:
                self._roster.forget(client)
                raise FedBMError(f"it trained on {plain(body.get('n'))} images, but told of {facts.n}")
            losses, seconds = read_losses(body)
            loss = self._privacy.keep(client, body) if self._privacy else None  # spent, whatever the upload is worth
            if packed is None:
                raise FedBMError("it sent no tensors")
            state, norm = read_upload(packed, self._expected, sent, self._options.max_norm)
            self._norms.accept(round_, facts.n, norm)
        except FedBMError as error:
            self._roster.reject(client, round_, str(error), bytes=received)
            return ClientResult(nothing, str(error), reply.sent, received)
        if body.get("keeps") is True:
            self._requests.counted(client)
        told = {"privacy": loss, "head": plain(body.get("head"))}
        who = self._roster.identify(client)
        self._audit.append("received", **who, round=round_, bytes=received, digest=packed.digest, **told)
        return ClientResult(Upload(client, facts.n, state, losses, seconds), None, reply.sent, received)

    def _missed(self, round_: int, reply: Reply) -> str:
        """Count a missed deadline, and return why no usable answer came."""
        content = reply.content
        if isinstance(content, Envelope):
            why = sentence(content.body, self._roster.classes)
        else:
            why = content or f"no answer within {self._options.deadline_s:g} s"
        missed = self._roster.count_missed_deadline(reply.client)
        who = self._roster.identify(reply.client)
        self._audit.append("missed", **who, round=round_, why=why, missed_deadlines=missed)
        self._roster.changed()
        return why

    def score(self, round_: int, parts: Mapping[str, Part]) -> Iterator[tuple[ModelScores, int] | None]:
        """Confusion matrices of every node's own images, summed; who did not answer is not in the sum."""
        sent = 0
        for _ in range(self._options.max_round_attempts):
            clients = self._roster.gather(heal=False)
            found: dict[int, dict[str, Array]] = {}
            for reply in self._requests.replies(EVALUATE, round_, clients, parts):
                if reply is None:
                    yield None
                    continue
                sent += reply.sent
                if not isinstance(reply.content, Envelope) or reply.content.body.get("code") != "ok":
                    self._missed(round_, reply)
                else:
                    try:
                        found[reply.client] = self._matrices(round_, reply.client, reply.content.body)
                    except FedBMError as error:
                        self._roster.reject(reply.client, round_, str(error))
            if clients and len(found) >= min(self._roster.needed, len(clients)):
                scored = {client: own for client, own in found.items() if own}
                yield self._evaluation(round_, scored), sent
                return

    def _matrices(self, round_: int, client: int, body: Mapping[str, Any]) -> dict[str, Array]:
        """Return those a node sent, by side, each of as many images as its census announced.

        There are none where a node has nothing to score yet.
        """
        for key, value in (("terms", self._roster.digest), ("client", client), ("round", round_)):
            same(body, key, value)
        told = body.get("confusion")
        if not isinstance(told, dict):
            raise FedBMError("it sent no confusion matrices")
        classes, images = len(self._roster.classes), self._roster.peers[client].census.scored
        found = {side: read_matrix(told[side], classes) for side in SCORED if side in told}
        if self._method.personalises and "personal" in body:
            found["personal"] = read_matrix(body["personal"], classes)
        for side, matrix in found.items():
            announced = images["test" if side == "personal" else side]
            if (total := int(matrix.sum())) != announced:
                self._roster.forget(client)
                raise FedBMError(f"it scored {total} images of {side}, but its census announced {announced}")
        return found

    def _evaluation(self, round_: int, found: Mapping[int, Mapping[str, Array]]) -> ModelScores:
        zero = np.zeros((len(self._roster.classes),) * 2, dtype=np.int64)
        sums = {side: sum((own[side] for own in found.values() if side in own), zero) for side in SCORED}
        for side, total in sums.items():
            if not total.sum():
                raise FedBMError(
                    f'round {round_}: no node has {side} images to score on; give some, or say evaluate = "server"'
                )
        personal = {
            str(client): from_confusion(own["personal"])["accuracy"]
            for client, own in found.items()
            if "personal" in own and own["personal"].sum()
        }
        nodes = [
            {**self._roster.identify(client), "images": {side: int(own[side].sum()) for side in SCORED if side in own}}
            for client, own in sorted(found.items())
        ]
        self._audit.append("scored", round=round_, nodes=nodes, images=int(sums["test"].sum()))
        return ModelScores(
            val=score_confusion(sums["val"]),
            test=score_confusion(sums["test"]),
            confusion=tuple(map(tuple, sums["test"].tolist())),
            personal=PersonalScores(float(np.mean(list(personal.values()))), personal) if personal else None,
            scored=tuple(sorted(found)),
        )
