"""A site's own rules: [policy] in its node.toml, checked at the site before anything is computed.

The file is read again for every request, so a change applies at once. A refusal leaves the site as a code. Runs that
need an approval are in <state>/approvals/, one file per digest of terms:

    <digest>.json       a summary of the terms, written when the server first asks
    <digest>.approved   a person has approved exactly these terms
"""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.site_files import Policy
from fedbm.federation.protocol.messages import Refusal, Terms
from fedbm.methods.base import Facts
from fedbm.utils.io import read_json, write_json, write_text

FORMAT = 1


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
        request = state / "approvals" / f"{terms.digest}.json"
        if not request.exists():
            write_json(request, {"format": FORMAT, "run": terms.run, **summarise(terms, policy)})
        raise Refusal("approval")


def check_counts(policy: Policy, facts: Facts) -> None:
    """Raise Refusal if the site has training images of a class, but fewer than the policy asks for."""
    if any(0 < count < policy.min_per_class for count in facts.label_counts):
        raise Refusal("few")


def summarise(terms: Terms, policy: Policy) -> dict[str, Any]:
    """Return what a person must know to approve a run."""
    config, privacy = terms.config, terms.values["privacy"]
    leaves = ["model updates", *([] if privacy else ["mean losses"]), "class names", "the number of training images"]
    leaves += ["label counts"] if "label_counts" in config.method.shares else []
    if terms.values["evaluates"] and policy.scores:
        leaves += ["the numbers of val and test images", "confusion matrices"]
    return {
        "method": config.method.name,
        "rounds": config.train.rounds,
        "classes": list(terms.classes),
        "leaves": leaves,
        "noise": privacy["noise"] if privacy else None,
    }


def list_requests(state: Path) -> list[tuple[dict[str, Any], bool]]:
    """Return every run that asked for an approval, the oldest first, and whether it has one."""
    files = sorted((state / "approvals").glob("*.json"), key=lambda path: path.stat().st_mtime)
    return [({**read_json(path), "terms": path.stem}, _approved(state, path.stem).exists()) for path in files]


def describe_request(request: dict[str, Any], approved: bool) -> str:
    """Return a waiting or approved run in one sentence."""
    noise = f"with noise multiplier {request['noise']:g}" if request["noise"] else "without noise"
    return (
        f"{request['run']} ({'approved' if approved else 'waiting'}): {request['method']}, {request['rounds']} rounds, "
        f"{noise}, classes {join_words(request['classes'], 'and')}. Leaves this site: "
        f"{join_words(request['leaves'], 'and')}."
    )


def approve(state: Path, run: str, withdraw: bool = False) -> int:
    """Approve the terms that *run* asks for, or withdraw that, and return how many terms changed."""
    requests = list_requests(state)
    if run not in (known := sorted({request["run"] for request, _ in requests})):
        raise FedBMError(f'no run "{run}" has asked for an approval here{did_you_mean(run, known)}')
    changed = [request["terms"] for request, approved in requests if request["run"] == run and approved == withdraw]
    for digest in changed:
        event = "approval_withdrawn" if withdraw else "approved"
        Audit(state / "audit.jsonl").append(event, run=run, terms=digest, by=getpass.getuser())
        if withdraw:
            _approved(state, digest).unlink()
        else:
            write_text(_approved(state, digest), "")
    return len(changed)


def _approved(state: Path, digest: str) -> Path:
    return state / "approvals" / f"{digest}.approved"
