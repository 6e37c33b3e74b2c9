"""A node's answers to the server's requests: census, train, evaluate, refused.

Errors leave the site as a code, never as text. Training uses `train_client` with the random streams of (seed, round,
client), as in one process. So a repeated round gives the same upload, except for the noise of differential privacy.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.config.options import EngineOptions
from fedbm.engine.checkpoint import OPTIMIZER_PREFIX, split_by_prefix
from fedbm.engine.clients.cohort import find_nonfinite
from fedbm.engine.device import autocast, explain_memory_errors, find_device, numeric_settings, run_to_end
from fedbm.engine.evaluate import personal_confusion, score_states
from fedbm.engine.run_folder import BusyError, RunFolder, replace_nonfinite
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.settings_files import NodeSettings, Policy, clear_refusal, read_settings, write_refusal
from fedbm.federation.node.loaded_run import Built, LoadedRun
from fedbm.federation.node.node_data import open_site
from fedbm.federation.node.node_store import NodeStore
from fedbm.federation.node.policy_checks import check_terms, has_few
from fedbm.federation.node.privacy import privatise
from fedbm.federation.node.privacy_ledger import count_release
from fedbm.federation.protocol.flower_records import Envelope
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
    log_error,
    printable,
    refuse_on_error,
    versions,
)
from fedbm.federation.protocol.packing import pack
from fedbm.methods.base import Facts, State

MAX_ANSWERS_PER_ROUND = 5  # to train, and to evaluate: a round can be repeated, and an averaged model is scored too
HASH_LENGTH = 64
MAX_REFUSAL_LENGTH = 400  # characters of the server's reason that are kept


@dataclass(frozen=True)
class Site:
    """A node's own configuration, with which its supervisor starts the worker."""

    client: int
    name: str
    data: str
    folder: str
    state: str
    device: str = "auto"
    threads: int = 0
    size: int = 0  # 0: as the run needs it
    channels: int = 0


def answer(
    kind: str, request: Envelope, node_config: Mapping[str, Any], kept: dict[Site, LoadedRun] | None = None
) -> Envelope:
    """Return the node's answer to any request. An exception becomes a refusal, except KeyboardInterrupt.

    *kept* contains the run that the last message of each site loaded. A worker has one site.
    """
    kept, site = {} if kept is None else kept, Site(**node_config)
    audit = Audit(Path(site.state) / "audit.jsonl")
    try:
        found = _answer(kind, request, site, audit, kept)
    except (Exception, SystemExit) as error:
        kept.clear()  # free the loaded run: the request may have failed for lack of memory
        refusal = error if isinstance(error, Refusal) else Refusal("failed")
        cause = error.__cause__ if isinstance(error, Refusal) else error
        if cause is not None:
            log_error(cause)
        if not (refusal.repeated and kind == CENSUS):
            terms = request.body.get("terms")
            run = terms.get("run") if isinstance(terms, dict) else None
            audit.append("refused", request=printable(kind), run=printable(run, 200), code=refusal.code)
        who = {"client": site.client, "name": site.name}
        found = Envelope({"code": refusal.code, "versions": versions(), **who, **refusal.about})
    found.body["head"] = audit.head
    return found


def _answer(kind: str, request: Envelope, site: Site, audit: Audit, kept: dict[Site, LoadedRun]) -> Envelope:
    state = Path(site.state)
    if kind not in (CENSUS, REFUSED, TRAIN, EVALUATE):
        raise Refusal("app")
    if kind == REFUSED:
        why = printable(request.body.get("why"), MAX_REFUSAL_LENGTH)
        audit.append("refused_by_server", why=why, server_head=printable(request.body.get("head"), HASH_LENGTH))
        write_refusal(state, why)
        return Envelope({"code": "ok"})
    terms = accept_terms(request.body.get("terms"))
    check_rules(site, terms)
    run = load_run(site, terms, kept)
    policy = check_rules(site, terms, run)
    handler = Handler(request, terms, site, run, NodeStore(state, terms, site.client), audit)
    if kind == CENSUS:
        return handler.census(policy)
    clear_refusal(state)
    engine = EngineOptions(device=site.device, threads=site.threads)
    numeric = numeric_settings(engine, terms.config.train.precision)
    try:
        with RunFolder(handler.store.folder).lock(), numeric, explain_memory_errors(run.device):
            return handler.train(policy) if kind == TRAIN else handler.evaluate(policy)
    except BusyError as error:  # another process works on this run
        raise Refusal("busy") from error


def check_rules(site: Site, terms: Terms, run: LoadedRun | None = None) -> Policy:
    """Return the site's rules as they are now; raise Refusal if they do not allow these terms, or this *run*'s data."""
    with refuse_on_error("policy"):
        policy = read_settings(Path(site.folder), NodeSettings).policy
    check_terms(policy, terms, Path(site.state))
    if run is not None and has_few(policy, run.facts.label_counts):
        raise Refusal("few")
    return policy


def load_run(site: Site, terms: Terms, kept: dict[Site, LoadedRun]) -> LoadedRun:
    """Return the run of these terms with this site's images: the kept one, unless terms or images have changed."""
    with refuse_on_error("setup"):
        device = find_device(site.device)
    channels, *sides = terms.shape
    if site.channels not in (0, channels) or any(site.size not in (0, side) for side in sides):
        raise Refusal("size")  # before a copy of the images at a size that the server chose fills the disk
    run = kept.get(site)
    known = run.data if run is not None and run.terms.digest == terms.digest else None
    data = open_site(site.data, terms.classes, terms.shape, known)
    if run is None or data is not known:
        run = None
        kept.pop(site, None)  # its memory is free before the next one is loaded
        if device.type == "cuda":  # captured steps are in reference cycles
            gc.collect()
        counts = data.label_counts("train")
        run = kept[site] = LoadedRun(terms, data, Facts(site.client, sum(counts), counts), device)
    return run


@dataclass(frozen=True)
class Handler:
    """One request with accepted terms, and what is needed to answer it."""

    request: Envelope
    terms: Terms
    site: Site
    run: LoadedRun
    store: NodeStore
    audit: Audit

    def census(self, policy: Policy) -> Envelope:
        """Describe this node. Label counts leave only for a method that declares that it shares them.

        The numbers of val and test images leave only if nodes score the model.
        """
        method = self.terms.config.method
        shares_counts = "label_counts" in method.shares
        self._count_release(policy, TRAIN, write=False)  # a node that cannot train any more does not take part
        if shares_counts:
            self._count_release(policy)
        body = {
            "code": "ok",
            "versions": versions(),
            "terms": self.terms.digest,
            "client": self.site.client,
            "name": self.site.name,
            "classes": list(self.run.data.names),
            "n": self.run.facts.n,
            "holds": self.run.digests,
        }
        if shares_counts:
            body["label_counts"] = list(self.run.facts.label_counts)
        if self.terms.values["evaluates"]:
            body |= {side: self._count_scored(policy, side) for side in SCORED}
        self._record("census", n=self.run.facts.n, fields=sorted(body), method=method.name)
        return Envelope(body)

    def train(self, policy: Policy) -> Envelope:
        """Train the client for one round, and return its upload, with noise if the terms ask for it.

        It is counted before it is computed, because a refusal after that reveals something about the update.
        """
        privacy = self.terms.values["privacy"]
        round_, built, received, state = self._load()
        spent = self._count_release(policy, TRAIN)
        if state is None:
            initial = self.terms.config.method.client_init(built.task, self.run.facts)
            state = {name: value.to(self.run.device) for name, value in initial.items()}
        upload, own = self.run.train(built, round_, received, state)
        if find_nonfinite(own) is not None:
            raise Refusal("nonfinite")
        sent, losses = upload.state, upload.losses
        if privacy is not None:
            with refuse_on_error("nonfinite"):
                sent, losses = privatise(upload.state, received, privacy["clip"], privacy["noise"]), {}
        with refuse_on_error("compression"):
            packed = pack(sent, self.terms.values["compression"], received)
        if own:
            self.store.save(round_, own)
        check_rules(self.site, self.terms, self.run)  # they may have changed while it trained
        self._record(
            "trained",
            round=round_,
            received={item["name"]: item["digest"] for item in self.request.body["parts"]},
            bytes_received=sum(item.size for item in self.request.packed.values()),
            sent=packed.digest,
            bytes_sent=packed.size,
            privacy=spent,
        )
        body = {
            **self._identify_answer(round_),
            "n": upload.n,
            "losses": replace_nonfinite(losses),
            "seconds": upload.seconds,
            "keeps": bool(own),
            "privacy": spent,
        }
        return Envelope(body, {UPLOAD: packed})

    def evaluate(self, policy: Policy) -> Envelope:
        """Return confusion matrices on this site's own val and test images, or none if there is no model to score."""
        if not self.terms.values["evaluates"]:
            raise Refusal("terms")
        method, client = self.terms.config.method, self.run.facts.client
        round_, built, received, saved = self._load()
        self._count_release(policy, EVALUATE)
        model, sets = built.model, {side: built.samples[side] for side in SCORED if self._count_scored(policy, side)}
        own = {} if saved is None else {client: split_by_prefix(saved, OPTIMIZER_PREFIX)[0]}
        body = self._identify_answer(round_)
        precision = self.terms.config.train.precision
        scores = run_to_end(score_states(method, model, method.global_states(received, own), sets, precision)) or {}
        body["confusion"] = {side: matrix.tolist() for side, (_, matrix) in scores.items()}
        with autocast(self.run.device, precision):
            if method.personalises and own and "test" in sets:
                state = method.personal_state(received, own[client])
                body["personal"] = personal_confusion(model, state, sets["test"]).tolist()
        if check_rules(self.site, self.terms, self.run) != policy:  # they may now keep these scores here
            raise Refusal("policy")
        self._record(
            "evaluated",
            round=round_,
            fields=sorted(key for key in body if key not in ("code", "terms")),
            bytes_received=sum(item.size for item in self.request.packed.values()),
        )
        return Envelope(body)

    def _identify_answer(self, round_: int) -> dict[str, Any]:
        """Return the fields by which the server matches an answer with its request."""
        return {"code": "ok", "terms": self.terms.digest, "round": round_, "client": self.run.facts.client}

    def _count_scored(self, policy: Policy, side: str) -> int:
        """Return how many images of a split this site scores: none if its policy keeps scores here.

        The rows of a confusion matrix show the number of images per class, so min_per_class applies to them too.
        """
        counts = self.run.data.label_counts(side)
        return sum(counts) if policy.scores and not has_few(policy, counts) else 0

    def _load(self) -> tuple[int, Built, State, State | None]:
        """Return the round, the task with its model, what the method received, and the client's saved state."""
        body = self.request.body
        round_ = int(body["round"])
        if not 1 <= round_ <= self.terms.config.train.rounds:
            raise Refusal("terms")
        received = self.run.receive(body["parts"], self.request.packed)
        saved = self.store.load(int(body["counted"]), int(body["durable"]), bool(body["fresh"]), self.run.device)
        return round_, self.run.build(), received, saved

    def _count_release(self, policy: Policy, kind: str = "", write: bool = True) -> dict[str, Any] | None:
        """Count a release before it is computed, and return the site's privacy loss, or None if the run adds no noise.

        Raise Refusal if the rules do not allow its loss, or if the run has had all its answers of this *kind*.
        """
        most = MAX_ANSWERS_PER_ROUND * self.terms.config.train.rounds
        path = Path(self.site.state) / "privacy.json"
        return count_release(path, self.terms.run, self.terms.values["privacy"], policy, kind, most, write)

    def _record(self, event: str, **facts: Any) -> None:
        head = printable(self.request.body.get("head"), HASH_LENGTH)  # of the server's last audit line
        self.audit.append(event, run=self.terms.run, terms=self.terms.digest, **facts, server_head=head)
