"""A site's own rules: [policy] in its node.toml, checked at the site before anything is computed.

The file is read again for every request, so a change applies at once. A refusal leaves the site as a code. The server
chooses a run's name, so a person approves the digest of its terms. Texts of the server are made printable before a
person reads them. Requests for an approval are in <state>/approvals/:

    <digest>.json       a summary of the terms, written when the server first asks
    <digest>.approved   a person has approved exactly these terms
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fedbm.errors import FedBMError, did_you_mean, join_words
from fedbm.federation.audit import Audit
from fedbm.federation.deploy.settings_files import Policy
from fedbm.federation.protocol.messages import Refusal, Terms, printable
from fedbm.utils.io import read_json, write_json, write_text
from fedbm.utils.json_records import Keys, Length, NonNegative, Positive, decode

FORMAT = 1
MAX_WAITING = 100  # requests without an approval on the disk: a bound for what a server can fill
MAX_CLASSES = 20  # that a person is shown
DIGEST_LENGTH = 12  # characters of a digest that a person is shown

_REQUEST: Any = Keys(
    {
        **dict.fromkeys(("rounds", "epochs", "batch", "size", "class_count"), Positive),
        **dict.fromkeys(("classes", "leaves"), Annotated[tuple[str, ...], Length(least=1)]),
    },
    run=str,
    method=str,
    lr=NonNegative,
    noise=NonNegative | None,
)


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
        request, refusal = state / "approvals" / f"{terms.digest}.json", Refusal("approval")
        refusal.repeated = request.exists()
        waiting = [path for path in _request_files(state) if not _approved(state, path.stem).exists()]
        if not refusal.repeated and len(waiting) < MAX_WAITING:
            write_json(request, {"format": FORMAT, "run": terms.run, **summarise(terms, policy)})
        raise refusal


def has_few(policy: Policy, label_counts: Sequence[int]) -> bool:
    """Return whether a class has images, but fewer than the policy asks for."""
    return any(0 < count < policy.min_per_class for count in label_counts)


def summarise(terms: Terms, policy: Policy) -> dict[str, Any]:
    """Return what a person must know to approve a run."""
    config, privacy = terms.config, terms.values["privacy"]
    leaves = ["model updates", *([] if privacy else ["mean losses"]), "class names", "the number of training images"]
    leaves += ["label counts"] if "label_counts" in config.method.shares else []
    leaves += [config.method.class_statistics] if config.method.class_statistics else []
    if terms.values["evaluates"] and policy.scores:
        leaves += ["the numbers of val and test images", "confusion matrices"]
    return {
        "method": config.method.name,
        "rounds": config.train.rounds,
        "epochs": config.train.epochs,
        "batch": config.train.batch,
        "lr": config.train.lr,
        "size": terms.shape[1],
        "classes": list(terms.classes[:MAX_CLASSES]),
        "class_count": len(terms.classes),
        "leaves": leaves,
        "noise": privacy["noise"] if privacy else None,
    }


def list_requests(state: Path) -> list[tuple[dict[str, Any], bool]]:
    """Return every run that asked for an approval, the oldest first, and whether it has one."""
    found = []
    for path in sorted(_request_files(state), key=lambda path: path.stat().st_mtime):
        request = read_json(path)
        decode(_REQUEST, request, path, "; remove the file, and the run asks again")
        found.append(({**request, "terms": path.stem}, _approved(state, path.stem).exists()))
    return found


def describe_request(request: dict[str, Any], approved: bool) -> str:
    """Describe a waiting or approved run in a few sentences. What leaves comes before the server's class names."""
    noise = f"with noise multiplier {request['noise']:g}" if request["noise"] else "without noise"
    names = ", ".join(json.dumps(printable(name), ensure_ascii=False) for name in request["classes"][:MAX_CLASSES])
    status = "approved" if approved else "waiting"
    return (
        f"{printable(request['run'], 200)} {request['terms'][:DIGEST_LENGTH]} ({status}). "
        f"Leaves this site: {join_words(request['leaves'], 'and')}. "
        f"Training: {printable(request['method'])}, {request['rounds']} rounds, {noise}, epochs {request['epochs']}, "
        f"batch {request['batch']}, lr {request['lr']:g}, images of {request['size']} pixels. "
        f"Classes ({request['class_count']}): {names}{', …' if request['class_count'] > MAX_CLASSES else ''}."
    )


def approve(state: Path, run: str, digest: str = "", withdraw: bool = False) -> list[dict[str, Any]]:
    """Approve the request of *run* that waits, or withdraw its approvals, and return the requests that changed.

    If the run has asked with several terms, *digest* must name one, so that nobody approves terms they have not read.
    """
    requests = list_requests(state)
    if run not in (known := sorted({request["run"] for request, _ in requests})):
        raise FedBMError(f'no run "{run}" has asked for an approval here{did_you_mean(run, known)}')
    own = [each for each in requests if each[0]["run"] == run and each[0]["terms"].startswith(digest)]
    if not own:
        raise FedBMError(f'no request of "{run}" has the digest "{digest}"')
    changed = [request for request, approved in own if approved == withdraw]
    if len(own) > 1 and changed and not withdraw:  # even if only one still waits: it may have come after the reading
        waiting = join_words([request["terms"][:DIGEST_LENGTH] for request in changed], "and")
        raise FedBMError(
            f'"{run}" has asked with {len(own)} different terms; these wait: {waiting}. Read them with '
            "'fedbm federation approve DIR', and approve one with 'fedbm federation approve DIR RUN DIGEST'."
        )
    for request in changed:
        event = "approval_withdrawn" if withdraw else "approved"
        Audit(state / "audit.jsonl").append(event, run=run, terms=request["terms"], by=_user())
        if withdraw:
            _approved(state, request["terms"]).unlink()
        else:
            write_text(_approved(state, request["terms"]), "")
    return changed


def _user() -> str:
    """Return who approves: the account, which may have no name, and who became it with sudo."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"account {os.getuid()}"
    return f"{name}, sudo by {os.environ['SUDO_USER']}" if "SUDO_USER" in os.environ else name


def _request_files(state: Path) -> list[Path]:
    folder, names = state / "approvals", list[str]()
    with suppress(FileNotFoundError):
        names = os.listdir(folder)  # unlike glob(), it reports a folder that this account may not read
    return [folder / name for name in names if name.endswith(".json")]


def _approved(state: Path, digest: str) -> Path:
    return state / "approvals" / f"{digest}.approved"
