"""A node's side of the protocol: answer the census, train, evaluate, note a refusal.

What fails here leaves as a code, never as a text.

Training is `engine.local.train_client` with the streams of (seed, round, client), as in one process; so a round gives
the same upload wherever and however often it is run. Only the noise of differential privacy is new every time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedbm.config.options import EngineOptions
from fedbm.engine.clients.base import find_nonfinite
from fedbm.engine.device import autocast, explain_memory_errors, find_device, numeric_settings
from fedbm.engine.evaluate import global_score, personal_confusion
from fedbm.engine.local_training import split_optimizer_state, train_client
from fedbm.errors import FedBMError
from fedbm.federation.audit import Audit
from fedbm.federation.node.node_data import SiteData, open_site
from fedbm.federation.node.node_store import NodeStore
from fedbm.federation.node.privacy import privatise
from fedbm.federation.node.privacy_ledger import PrivacyLedger
from fedbm.federation.node.refusal_file import clear_refusal, write_refusal
from fedbm.federation.protocol.codec import Envelope
from fedbm.federation.protocol.messages import (
    CENSUS,
    EVALUATE,
    REFUSED,
    SCORED,
    TRAIN,
    UPLOAD,
    Refusal,
    Terms,
    accept_terms,
    plain,
    versions,
)
from fedbm.federation.protocol.packing import pack
from fedbm.federation.site_log import tell
from fedbm.methods.base import Facts, State

MAX_REFUSAL_LENGTH = 400  # characters of a server's sentence that are kept


@dataclass(frozen=True)
class Site:
    """A node as its own configuration sets it up."""

    client: int
    name: str
    data: str
    state: Path
    engine: EngineOptions

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Site:
        try:
            client, data, state = config["client"], config["data"], config["state"]
            if type(client) is not int or not isinstance(data, str) or not isinstance(state, str) or client < 0:
                raise TypeError("node configuration")
            name = str(config.get("name", f"client {client}"))
            engine = EngineOptions(device=str(config.get("device", "auto")), threads=int(config.get("threads", 0)))
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal("setup") from error
        return cls(client, name, data, Path(state), engine)


def answer(kind: str, request: Envelope, node_config: Mapping[str, Any]) -> Envelope:
    """The node's answer to any request; it raises nothing but what ends the process (Ctrl-C)."""
    site = audit = None
    try:
        site = Site.read(node_config)
        audit = Audit(site.state / "audit.jsonl")
        found = _answer(kind, request, site, audit)
    except Refusal as refusal:
        if refusal.__cause__ is not None:
            tell(refusal.__cause__)
        found = _refused(refusal, kind, request, site, audit)
    except (Exception, SystemExit) as error:
        tell(error)
        found = _refused(Refusal("failed"), kind, request, site, audit)
    if audit is not None:
        found.body["head"] = audit.head
    return found


def _answer(kind: str, request: Envelope, site: Site, audit: Audit) -> Envelope:
    if kind == REFUSED:
        return _note_refusal(request, site, audit)
    terms = accept_terms(request.body.get("terms"))
    try:
        device = find_device(site.engine.device)
    except FedBMError as error:
        raise Refusal("setup") from error
    data = open_site(site.data, terms.classes, terms.shape, site.state)
    facts = data.facts(site.client, len(terms.classes))
    store = NodeStore(site.state / terms.run, site.client, device)
    ledger = PrivacyLedger(site.state / "privacy.json")
    if kind == CENSUS:
        if "label_counts" in terms.config.method.shares:
            _count(ledger, terms)
        found = _census(terms, request.body.get("evaluates") is True, site, data, facts, store)
        said = {"method": terms.config.method.name, "server_head": request.body.get("head")}
        audit.append("census", run=terms.run, terms=terms.digest, n=facts.n, told=sorted(found.body), **said)
        return found
    clear_refusal(site.state)
    work = {TRAIN: _train, EVALUATE: _evaluate}[kind]
    with ExitStack() as alone:
        try:
            alone.enter_context(store.held())
        except FedBMError as error:
            raise Refusal("busy") from error
        with numeric_settings(site.engine, terms.config.train.precision), explain_memory_errors(device):
            return work(request, terms, data, facts, store, device, audit, ledger)


def _note_refusal(request: Envelope, site: Site, audit: Audit) -> Envelope:
    """Record why the server keeps this node out, where its supervisor looks."""
    why = plain(request.body.get("why"), MAX_REFUSAL_LENGTH)
    audit.append("refused_by_server", why=why, server_head=request.body.get("head"))
    write_refusal(site.state, why)
    return Envelope({"code": "ok"})


def _census(terms: Terms, evaluates: bool, site: Site, data: SiteData, facts: Facts, store: NodeStore) -> Envelope:
    """Who this is. Label counts leave only for a method that declares that it shares them.

    The numbers of val and test images leave only where the node is to score the model on them.
    """
    if evaluates and terms.values["privacy"] is not None:  # exact counts, as when it is asked for the scores
        raise Refusal("terms")
    body: dict[str, Any] = {
        "code": "ok",
        "versions": versions(),
        "terms": terms.digest,
        "client": site.client,
        "name": site.name,
        "classes": list(data.classes),
        "n": facts.n,
        "holds": store.holds(),
    }
    if "label_counts" in terms.config.method.shares:
        body["label_counts"] = list(facts.label_counts)
    if evaluates:
        body |= {side: data.count(side) for side in SCORED}
    return Envelope(body)


def _train(
    request: Envelope,
    terms: Terms,
    data: SiteData,
    facts: Facts,
    store: NodeStore,
    device: torch.device,
    audit: Audit,
    ledger: PrivacyLedger,
) -> Envelope:
    body, config = request.body, terms.config
    round_ = int(body["round"])
    parts = store.parts(body["parts"], request.packed)
    kept = store.state(int(body["counted"]), int(body["durable"]), bool(body["fresh"]))
    task = terms.task(parts)
    model = config.method.model(task).to(device)
    received = _received(parts)
    state = config.method.client_init(task, facts) if kept is None else kept
    samples = data.samples("train", task.normalise().to(device), device)
    upload, own = train_client(
        config.method, model, task, config.train, round_, facts, samples, received, _placed(state, device)
    )
    if find_nonfinite(own) is not None:
        raise Refusal("nonfinite")
    sent, losses, privacy = upload.state, upload.losses, terms.values["privacy"]
    if privacy is not None:
        try:
            sent, losses = privatise(upload.state, received, privacy["clip"], privacy["noise"]), {}
        except FedBMError as error:
            raise Refusal("nonfinite") from error
    try:
        packed = pack(sent, terms.values["compression"], received)
    except FedBMError as error:
        raise Refusal("compression") from error
    if own:
        store.keep(round_, own)
    spent = _count(ledger, terms)
    audit.append(
        "trained",
        run=terms.run,
        terms=terms.digest,
        round=round_,
        received={item["name"]: item["digest"] for item in body["parts"]},
        bytes_received=sum(item.size for item in request.packed.values()),
        sent=packed.digest,
        bytes_sent=packed.size,
        privacy=spent,
        server_head=body.get("head"),
    )
    answer = {
        "code": "ok",
        "terms": terms.digest,
        "round": round_,
        "client": facts.client,
        "n": upload.n,
        "losses": {name: value if math.isfinite(value) else None for name, value in losses.items()},
        "seconds": upload.seconds,
        "keeps": bool(own),
        "privacy": spent,
    }
    return Envelope(answer, {UPLOAD: packed})


def _evaluate(
    request: Envelope,
    terms: Terms,
    data: SiteData,
    facts: Facts,
    store: NodeStore,
    device: torch.device,
    audit: Audit,
    ledger: PrivacyLedger,
) -> Envelope:
    """Confusion matrices on this site's own val and test images; none where there is nothing to score yet."""
    body, method = request.body, terms.config.method
    if terms.values["privacy"] is not None:  # exact counts would leave beside the noisy update
        raise Refusal("terms")
    parts = store.parts(body["parts"], request.packed)
    kept = store.state(int(body["counted"]), int(body["durable"]), bool(body["fresh"]))
    task = terms.task(parts)
    model = method.model(task).to(device)
    received = _received(parts)
    own = {} if kept is None else {facts.client: split_optimizer_state(_placed(kept, device))[0]}
    normalise = task.normalise().to(device)
    sets = {side: data.samples(side, normalise, device) for side in SCORED}
    sets = {side: samples for side, samples in sets.items() if len(samples.indices)}
    found: dict[str, Any] = {"code": "ok", "terms": terms.digest, "round": int(body["round"]), "client": facts.client}
    with autocast(device, terms.config.train.precision):
        scores = global_score(method, model, received, own, sets) or {}
        found["confusion"] = {side: matrix.tolist() for side, (_, matrix) in scores.items()}
        if method.personalises and own and "test" in sets:
            state = method.personal_state(received, own[facts.client])
            found["personal"] = personal_confusion(method, model, state, sets["test"]).tolist()
    _count(ledger, terms)
    audit.append(
        "evaluated",
        run=terms.run,
        terms=terms.digest,
        round=found["round"],
        told=sorted(key for key in found if key not in ("code", "terms")),
        bytes_received=sum(item.size for item in request.packed.values()),
        server_head=body.get("head"),
    )
    return Envelope(found)


def _count(ledger: PrivacyLedger, terms: Terms) -> dict[str, Any] | None:
    """Count a release before it leaves; return the site's privacy loss, or None if the run adds no noise."""
    privacy = terms.values["privacy"]
    try:
        if privacy is None:
            ledger.record_exact(terms.run)
            return None
        return ledger.count_noisy(terms.run, privacy)
    except FedBMError as error:
        raise Refusal("privacy") from error


def _received(parts: Mapping[str, State]) -> State:
    """What the method's own parts hold, as train_client() takes it; parts of the task are not the method's."""
    return {
        name: value for part, state in parts.items() if not part.startswith("task.") for name, value in state.items()
    }


def _placed(state: State, device: torch.device) -> State:
    return {name: value.to(device) for name, value in state.items()}


def _refused(refusal: Refusal, kind: str, request: Envelope, site: Site | None, audit: Audit | None) -> Envelope:
    if audit is not None:
        terms = request.body.get("terms")
        run = terms.get("run") if isinstance(terms, dict) else None
        audit.append("refused", request=kind, run=str(run)[:200], code=refusal.code)
    who = {"client": site.client, "name": site.name} if site is not None else {}
    return Envelope({"code": refusal.code, "versions": versions(), **who, **refusal.about})
