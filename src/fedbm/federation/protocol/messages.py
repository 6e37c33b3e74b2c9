"""The messages between server and nodes: the terms of a run, four requests, and the refusals of a site.

    census    terms                                  → client, classes, n, holds; if asked for: label counts, numbers
                                                       of val and test images
    train     terms, round, parts, counted, durable  → round, n, losses, seconds, and the upload
    evaluate  terms, round, parts, counted           → confusion matrices of the site's own val and test images
    refused   why the server refuses this node       → nothing

*Terms* contain everything that a node must know about a run: method, training, model, task, and whether nodes score the
model. Every request contains them, because a node may have restarted. A node checks every value, runs only methods of
its own installed package, and names the terms by their digest in every answer. An error leaves a site only as a code.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fedbm.engine.environment import package_version
from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import Compression
from fedbm.methods.base import Facts, State, Task
from fedbm.models.backbone import body_factory, check_body, load_weights
from fedbm.runs.run_config import Config, make_config, method_values
from fedbm.runs.run_id import plugin_code
from fedbm.utils.io import digest_of
from fedbm.version import __version__

T = TypeVar("T")

PROTOCOL = 3
CENSUS, REFUSED, TRAIN, EVALUATE = "query.census", "query.refused", "train", "evaluate"  # Flower's message types
CONCEPTS, INIT = "task.concepts", "task.init"  # pieces of the task itself, each sent once
UPLOAD = "upload"
PRIVACY_LIMITS = {"noise": (1e-6, 1e6), "clip": (1e-9, 1e9), "delta": (1e-30, 1.0)}
TASK_LISTS = ("classes", "shape", "mean", "std")
TERMS = {  # section → its keys; make_config() checks those of method, train and model
    "versions": {"protocol", "fedbm"},
    "task": {*TASK_LISTS, "hflip", "vflip"},
    "concepts": {"texts", "checksum"},
    "privacy": set(PRIVACY_LIMITS),
}
OTHER_TERMS = {"run", "method", "train", "model", "init_weights", "compression", "evaluates"}
MAX_CLASS_NAME = 200  # characters
MAX_LOG_LINE = 2000
SCORED = ("val", "test")  # the splits that nodes score

REFUSALS = {  # code → why a site did not do what it was asked; only the code leaves the site
    "protocol": "uses another version of the protocol",
    "version": "has another version of fedbm",
    "app": "refused the server's app, because it runs only its own version of fedbm",
    "terms": "cannot accept the run's terms",
    "body": "cannot make the run's body; see its own log",
    "setup": "is not set up: client, data or state is missing in its node configuration",
    "policy": "cannot read its policy, or the policy changed in the meantime; see its own log",
    "data": "cannot read its data, or they are damaged",
    "size": "has images of another size or number of channels",
    "classes": "has a class that the run does not know",
    "empty": "has no training images",
    "lacks": "does not have a piece that it was expected to have",
    "lost": "has lost its client's state",
    "nonfinite": "reached a client state that is not finite",
    "compression": "has values that do not fit the compression",
    "privacy": "cannot count its privacy loss, so nothing leaves it; see its own log",
    "code": "has another version of a plug-in that the run uses, or none",
    "method": "does not allow the run's method (methods in its policy)",
    "rounds": "does not allow so many rounds (max_rounds in its policy)",
    "answers": "has answered this run as often as it allows: five times the number of its rounds",
    "counts": "does not let label counts leave, which the method needs (label_counts in its policy)",
    "noise": "asks for more noise (min_noise in its policy)",
    "epsilon": "does not allow a larger privacy loss (max_epsilon in its policy)",
    "few": "has too few training images of a class (min_per_class in its policy)",
    "approval": "waits until a person there approves the run with 'fedbm federation approve'",
    "busy": "is still working on this run",
    "failed": "failed; see its own log",
}
# refusals that last until someone at the site changes its rules or files
SITE_RULES = ("policy", "privacy", "answers", "method", "rounds", "counts", "noise", "epsilon", "few", "approval")


class Refusal(Exception):
    """A site refuses a request. *about* contains only fields that a census may contain too."""

    def __init__(self, code: str, **about: Any) -> None:
        super().__init__(REFUSALS[code])
        self.code, self.about = code, about
        self.repeated = False  # the audit already contains it


@contextmanager
def refuse_on_error(code: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn a FedBMError, or one of *errors*, into a refusal. The error itself stays in the site's log."""
    expected: tuple[type[Exception], ...] = (FedBMError, *errors)
    try:
        yield
    except expected as error:
        raise Refusal(code) from error


def log_error(error: BaseException) -> None:
    """Print the traceback to the site's own log, without control characters, since it can contain the server's text.

    Raise nothing: Flower would send any exception to the server.
    """
    with suppress(OSError, ValueError):
        lines = "".join(traceback.format_exception(error)).split("\n")
        print("\n".join(printable(line, MAX_LOG_LINE) for line in lines), file=sys.stderr, flush=True)


def versions() -> dict[str, Any]:
    """Return the versions that both sides report."""
    return {
        "protocol": PROTOCOL,
        "fedbm": __version__,
        "torch": package_version("torch"),
        "flwr": package_version("flwr"),
        "python": platform.python_version(),
    }


def make_terms(
    run: str, config: Config, task: Task, compression: Compression, privacy: Mapping[str, float] | None, evaluates: bool
) -> dict[str, Any]:
    """Return the terms of a run as plain JSON. Initial weights and embeddings are sent as pieces."""
    concepts = task.concepts
    return {
        "versions": {key: versions()[key] for key in ("protocol", "fedbm")},
        "run": run,
        "method": method_values(config.method),
        **plugin_code(config),  # digests of the source
        "train": dataclasses.asdict(config.train),
        "model": {**dataclasses.asdict(config.model), "init_weights": ""},
        "task": {**{key: list(getattr(task, key)) for key in TASK_LISTS}, "hflip": task.hflip, "vflip": task.vflip},
        "concepts": {"texts": list(concepts.texts), "checksum": concepts.checksum} if concepts else None,
        "init_weights": bool(config.model.init_weights),
        "compression": compression,
        "privacy": dict(privacy) if privacy else None,
        "evaluates": evaluates,  # nodes score the model on their own images
    }


@dataclass(frozen=True)
class Terms:
    """Terms that a node has checked and accepted."""

    run: str
    config: Config
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    values: Mapping[str, Any]
    digest: str

    def task(self, pieces: Mapping[str, State]) -> Task:
        """Return the task of the run, the same as at the server."""
        from fedbm.language.concept_distribution import ConceptDistribution

        values = self.values["task"]
        concepts = None
        if (declared := self.values["concepts"]) is not None:
            concepts = ConceptDistribution.fit(self.classes, declared["texts"], pieces[CONCEPTS]["embeddings"], {})
            if concepts.checksum != declared["checksum"]:
                raise Refusal("terms")
        make_random = body_factory(self.config.model, self.shape[0])

        def make_initial() -> Any:
            body = make_random()
            load_weights(body, dict(pieces[INIT]), "the server's initial weights")
            return body

        return Task(
            classes=self.classes,
            shape=self.shape,
            mean=tuple(values["mean"]),
            std=tuple(values["std"]),
            seed=self.config.train.seed,
            make_body=make_initial if self.values["init_weights"] else make_random,
            concepts=concepts,
            hflip=values["hflip"],
            vflip=values["vflip"],
        )


def accept_terms(values: Any) -> Terms:
    """Check every value of the terms that a node received; raise Refusal if it cannot accept them."""
    try:
        theirs = values["versions"]
        if theirs["protocol"] != PROTOCOL:
            raise Refusal("protocol")
        if theirs["fedbm"] != __version__:
            raise Refusal("version")
        config = make_config({section: values[section] for section in ("method", "train", "model")})
        with refuse_on_error("body"):
            check_body(config.model.body)
        if plugin_code(config) != {key: values[key] for key in ("code", "body_code") if key in values}:
            raise Refusal("code")
        task, run = values["task"], values["run"]
        classes, shape = tuple(task["classes"]), tuple(task["shape"])
        sound = (
            set(values) == TERMS.keys() | OTHER_TERMS | plugin_code(config).keys()
            and all(values[section] is None or set(values[section]) == known for section, known in TERMS.items())
            and is_safe_name(run)
            and not config.method.central
            and 2 <= len(classes) <= 10_000
            and all(isinstance(name, str) and len(name) <= MAX_CLASS_NAME for name in classes)
            and len(set(classes)) == len(classes)
            and len(shape) == 3
            and all(type(n) is int and 0 < n <= 1 << 14 for n in shape)
            and len(task["mean"]) == len(task["std"]) == shape[0]
            and all(isinstance(n, float | int) for n in (*task["mean"], *task["std"]))
            and values["compression"] in ("none", "half", "delta")
            and (values["concepts"] is None or len(values["concepts"]["texts"]) == len(classes))
            and not config.model.init_weights
            and {type(task["hflip"]), type(task["vflip"]), type(values["init_weights"]), type(values["evaluates"])}
            == {bool}
            and (values["privacy"] is None or _is_private(values, config.method.shares))
        )
        if not sound:
            raise Refusal("terms")
        return Terms(run, config, classes, (shape[0], shape[1], shape[2]), values, digest_of(values))
    except (FedBMError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refusal("terms") from error


def _is_private(values: Any, shares: tuple[str, ...]) -> bool:
    """Return whether noise, clip and delta are in range, and neither the method nor scores send exact counts."""
    limits, value = PRIVACY_LIMITS.items(), values["privacy"]
    sound = all(isinstance(value[key], float) and least <= value[key] <= most for key, (least, most) in limits)
    return sound and "label_counts" not in shares and not values["evaluates"]


def is_safe_name(name: Any) -> bool:
    """Return whether a received name is safe as a file name: letters, digits, dots and dashes, but not a path."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}", name) is not None


@dataclass(frozen=True)
class Census:
    """A node's description of itself."""

    name: str
    facts: Facts
    scored: dict[str, int]  # number of val and test images; empty if nodes do not evaluate
    holds: dict[str, str]  # piece → digest of the node's copy
    head: str  # of its audit
    versions: dict[str, str]


def read_census(
    body: Mapping[str, Any], terms: Mapping[str, Any], shares_counts: bool, nodes: int, max_samples: int
) -> Census:
    """Check a node's answer to the census; raise FedBMError with the reason why it cannot take part.

    *shares_counts* is whether the method shares label counts. A node may claim *max_samples* images of each split.
    """
    classes, evaluates = terms["task"]["classes"], terms["evaluates"]
    theirs, mine = read_field(body, "versions", dict), versions()
    for what in ("protocol", "fedbm"):
        if theirs.get(what) != mine[what]:
            raise FedBMError(
                f"it has {what} {printable(theirs.get(what))} and the server has {mine[what]}: install the same"
            )
    client, n = read_field(body, "client", int), read_field(body, "n", int)
    if not 0 <= client < nodes:
        raise FedBMError(f"it is client {printable(client)}, but a run with nodes = {nodes} has 0 to {nodes - 1}")
    if unknown := [name for name in read_field(body, "classes", list) if name not in classes]:
        raise FedBMError(f'it has the class "{printable(unknown[0])}", but the run has only {", ".join(classes)}')
    scored = {side: read_field(body, side, int) for side in SCORED} if evaluates else {}
    for what, count in {"training": n, **scored}.items():
        if count < (what == "training"):
            raise FedBMError(f"it has {printable(count)} {what} images")
        if count > max_samples:
            raise FedBMError(
                f"it claims {printable(count)} {what} images, above max_samples = {max_samples} in server.toml"
            )
    asked = {"val": evaluates, "test": evaluates, "label_counts": shares_counts}
    if unasked := [key for key, wanted in asked.items() if key in body and not wanted]:
        raise FedBMError(f"it sent {unasked[0]}, which this run does not ask for")
    counts: tuple[int, ...] = ()
    if shares_counts:
        counts = tuple(read_field(body, "label_counts", list))
        if len(counts) != len(classes) or any(type(k) is not int or k < 0 for k in counts) or sum(counts) != n:
            raise FedBMError("its label counts do not match its number of training images")
    return Census(
        name=printable(read_field(body, "name", str)),
        facts=Facts(client, n, counts),
        scored=scored,
        holds={str(piece): str(digest) for piece, digest in read_field(body, "holds", dict).items()},
        head=printable(body.get("head")),
        versions={what: printable(theirs.get(what)) for what in mine},
    )


def explain_refusal(body: Mapping[str, Any], classes: tuple[str, ...]) -> str:
    """Return a site's refusal in words."""
    code, theirs = body.get("code"), body.get("versions")
    why = f"it {REFUSALS.get(str(code), 'answered with an unknown code')}"
    if code in ("protocol", "version", "app") and isinstance(theirs, dict):
        who, fedbm = printable(body.get("name", "it")), printable(theirs.get("fedbm"))
        return f"{who} {REFUSALS[code]}: fedbm {fedbm}, but the server has {__version__}; install the same"
    if code == "classes" and isinstance(body.get("classes"), list):
        unknown = [printable(name) for name in body["classes"] if name not in classes]
        return f"{why}: {', '.join(unknown[:3])}; the run has {', '.join(classes)}"
    return why


def read_field(body: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return body[key] if it has exactly this type, otherwise raise FedBMError."""
    value = body.get(key)
    if type(value) is not kind:
        raise FedBMError(f"its answer has no {key} that can be read")
    return value


def printable(value: Any, limit: int = 70) -> str:
    """Return text from the other side, made printable and cut to *limit* characters."""
    return "".join(c if c.isprintable() else "?" for c in str(value))[:limit]
