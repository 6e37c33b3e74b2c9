"""A site's own rules: [policy] in its node.toml, checked at the site before anything is computed.

The file is read again for every request, so a change applies at once. A refusal leaves the site as a code. The server
chooses a run's name, so a person approves the digest of its terms. Requests for an approval are in <state>/approvals/:

    <digest>.txt        what a person reads about the terms, written when the server first asks
    <digest>.approved   a person has approved exactly these terms
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedbm.errors import FedBMError, join_words
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.settings_files import Policy
from fedbm.federation.protocol.messages import Refusal, Terms, printable
from fedbm.utils.io import read_text, write_text

MAX_WAITING = 100  # requests without an approval on the disk: a bound for what a server can fill
MAX_CLASSES = 20  # that a person is shown
DIGEST_LENGTH = 12  # characters of a digest that a person is shown, and has to give


class Request(NamedTuple):
    """A run that asked for an approval."""

    digest: str  # of its terms
    text: str  # what a person reads about it, with its name in the first line
    approved: bool


def check_terms(policy: Policy, terms: Terms, state: Path) -> None:
    """Raise Refusal if the policy does not allow a run with these terms, or if nobody has approved it yet."""
    config, privacy = terms.config, terms.values["privacy"]
    if policy.methods != "all" and config.method.name not in policy.method_names:
        raise Refusal("method")
    if config.train.rounds > policy.max_rounds:
        raise Refusal("rounds")
    if "label_counts" in config.method.shares and not policy.label_counts:
        raise Refusal("counts")
    if policy.min_noise and (privacy is None or privacy["noise"] < policy.min_noise):
        raise Refusal("noise")
    if policy.max_epsilon is not None and privacy is None:
        raise Refusal("epsilon")
    if policy.approval and not _approved(state, terms.digest).exists():
        file, refusal = state / "approvals" / f"{terms.digest}.txt", Refusal("approval")
        refusal.repeated = file.exists()
        if not refusal.repeated and sum(not request.approved for request in list_requests(state)) < MAX_WAITING:
            write_text(file, describe_terms(terms))
        raise refusal


def has_few(policy: Policy, label_counts: Sequence[int]) -> bool:
    """Return whether a class has images, but fewer than the policy asks for."""
    return any(0 < count < policy.min_per_class for count in label_counts)


def describe_terms(terms: Terms) -> str:
    """Return what a person must know to approve a run. What leaves comes before the server's class names."""
    config, privacy = terms.config, terms.values["privacy"]
    leaves = ["model updates", *([] if privacy else ["mean losses"]), "class names", "the number of training images"]
    leaves += ["label counts"] if "label_counts" in config.method.shares else []
    leaves += [config.method.class_statistics] if config.method.class_statistics else []
    if terms.values["evaluates"]:  # the rule can change after this was written
        leaves += ["the numbers of val and test images and confusion matrices (unless scores = false)"]
    noise = f"with noise multiplier {privacy['noise']:g}" if privacy else "without noise"
    names = ", ".join(json.dumps(printable(name), ensure_ascii=False) for name in terms.classes[:MAX_CLASSES])
    return (
        f"{terms.run}\n"
        f"  leaves this site: {join_words(leaves, 'and')}\n"
        f"  training: {config.method.name}, {config.train.rounds} rounds, {noise}, epochs {config.train.epochs}, "
        f"batch {config.train.batch}, lr {config.train.lr:g}, images of {terms.shape[1]} pixels\n"
        f"  classes ({len(terms.classes)}): {names}{', …' if len(terms.classes) > MAX_CLASSES else ''}\n"
    )


def list_requests(state: Path) -> list[Request]:
    """Return every run that asked for an approval: those that wait before the others, the oldest first."""
    folder = state / "approvals"
    paths = folder.iterdir() if folder.is_dir() else ()  # unlike glob(), they report a folder that cannot be read
    files = sorted((path for path in paths if path.suffix == ".txt"), key=lambda path: path.stat().st_mtime)
    found = [Request(path.stem, read_text(path), _approved(state, path.stem).exists()) for path in files]
    return sorted(found, key=lambda request: request.approved)


def approve(state: Path, digest: str, withdraw: bool = False) -> Request:
    """Approve exactly the terms with this digest, or withdraw their approval, and return the request as it was.

    A digest has to be as long as a person is shown, so that nobody approves terms that they have not read.
    """
    found = [request for request in list_requests(state) if request.digest.startswith(digest)]
    if len(digest) < DIGEST_LENGTH or len(found) != 1:
        remedy = "Read the requests with 'fedbm federation approve DIR', and give one of the digests that it shows"
        raise FedBMError(f'no single request has the digest "{digest}". {remedy}')
    [request] = found
    if request.approved == withdraw:
        event = "approval_withdrawn" if withdraw else "approved"
        run = request.text.splitlines()[0]
        account = os.environ.get("SUDO_USER") or os.environ.get("USER") or f"account {os.getuid()}"
        Audit(state / "audit.jsonl").append(event, run=run, terms=request.digest, by=account)
        if withdraw:
            _approved(state, request.digest).unlink()
        else:
            write_text(_approved(state, request.digest), "")
    return request


def _approved(state: Path, digest: str) -> Path:
    return state / "approvals" / f"{digest}.approved"
