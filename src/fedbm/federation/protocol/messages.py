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
from typing import Any

from fedbm.engine.environment import package_version
from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import Compression
from fedbm.methods.base import State, Task
from fedbm.models.backbone import body_factory, check_body, load_weights
from fedbm.runs.run_config import Config, make_config, method_values
from fedbm.runs.run_id import plugin_code
from fedbm.utils.io import digest_of
from fedbm.version import __version__

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
    "setup": "cannot use the device in its node.toml; see its own log",
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
    packages = {name: package_version(name) for name in ("torch", "flwr")}
    return {"protocol": PROTOCOL, "fedbm": __version__, **packages, "python": platform.python_version()}


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


class CensusOutdated(FedBMError):
    """A node's census no longer holds, so the server asks for it again."""


class SiteRefusal(CensusOutdated):
    """A site's refusal, at the server."""

    def __init__(self, body: Mapping[str, Any], classes: tuple[str, ...]) -> None:
        self.code, versions, names = body.get("code"), body.get("versions"), body.get("classes")
        why = f"it {REFUSALS.get(str(self.code), 'answered with an unknown code')}"
        if self.code in ("protocol", "version", "app") and isinstance(versions, dict):
            theirs = printable(versions.get("fedbm"))
            why += f": fedbm {theirs}, but the server has {__version__}; install the same"
        if self.code == "classes" and isinstance(names, list):
            unknown = [printable(name) for name in names if name not in classes]
            why += f": {', '.join(unknown[:3])}; the run has {', '.join(classes)}"
        super().__init__(why)


def printable(value: Any, limit: int = 70) -> str:
    """Return text from the other side, made printable and cut to *limit* characters."""
    return "".join(c if c.isprintable() else "?" for c in str(value))[:limit]
