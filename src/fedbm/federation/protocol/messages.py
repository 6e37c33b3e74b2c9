"""What server and nodes say to each other: the terms of a run, the four requests, and a site's refusals.

    census    terms, evaluates                       → client, classes, n, holds, and what they are asked for besides:
                                                       label counts, numbers of val and test images
    train     terms, round, parts, counted, durable  → round, n, losses, seconds, and the upload
    evaluate  terms, round, parts, counted           → confusion matrices of the site's own val and test images
    refused   why the server keeps this node out     → nothing

*Terms* are all a node must know of a run: method, training, model and task. They travel with every request, for Flower
starts a new process for each; a node runs only methods of its own installed package, checks every value as it would
its user's, and names the terms by their digest in every answer. A site never says more of an error than a code.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

from fedbm.errors import FedBMError
from fedbm.federation.protocol.packing import Compression
from fedbm.methods.base import Facts, State, Task
from fedbm.models.backbone import load_weights, resnet_factory
from fedbm.runs.config import Config, make_config, method_values
from fedbm.utils.io import digest_of
from fedbm.version import __version__

PROTOCOL = 1
CENSUS, REFUSED, TRAIN, EVALUATE = "query.census", "query.refused", "train", "evaluate"  # Flower's message types
CONCEPTS, INIT = "task.concepts", "task.init"  # parts of the task itself, each sent once
UPLOAD = "upload"
PRIVACY_LIMITS = {"noise": (1e-6, 1e6), "clip": (1e-9, 1e9), "delta": (1e-30, 1.0)}
SCORED = ("val", "test")  # the splits that nodes score on

# why a site did not do what it was asked: the code is all that leaves it
REFUSALS = {
    "protocol": "speaks another protocol",
    "version": "has another version of fedbm",
    "terms": "cannot accept the run's terms",
    "setup": "is not set up: client, data or state is missing in its node configuration",
    "data": "cannot read its data, or they are damaged",
    "size": "has prepared images of another size or number of channels",
    "classes": "has a class that the run does not know",
    "empty": "has no training images",
    "lacks": "lacks a part it was taken to hold",
    "lost": "has lost its client's state",
    "nonfinite": "reached a state of its own that is not finite",
    "compression": "has values that do not fit the compression",
    "privacy": "cannot count its privacy loss, so nothing leaves it; its own log says why",
    "busy": "is still at work on this run",
    "failed": "failed; its own log says why",
}


class Refusal(Exception):
    """A site's answer that it will not or cannot; *about* holds only what the census may say anyway."""

    def __init__(self, code: str, **about: Any) -> None:
        super().__init__(REFUSALS[code])
        self.code, self.about = code, about


def versions() -> dict[str, Any]:
    """What both sides tell of themselves."""
    return {
        "protocol": PROTOCOL,
        "fedbm": __version__,
        "torch": version("torch"),
        "flwr": version("flwr"),
        "python": platform.python_version(),
    }


def make_terms(
    run: str, config: Config, task: Task, compression: Compression, privacy: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """All a node must know of a run, as plain JSON. Initial weights and embeddings travel as parts of their own."""
    concepts = task.concepts
    return {
        "versions": {key: versions()[key] for key in ("protocol", "fedbm")},
        "run": run,
        "method": method_values(config.method),
        "train": dataclasses.asdict(config.train),
        "model": {**dataclasses.asdict(config.model), "init_weights": ""},
        "task": {
            "classes": list(task.classes),
            "shape": list(task.shape),
            "mean": list(task.mean),
            "std": list(task.std),
            "hflip": task.hflip,
            "vflip": task.vflip,
        },
        "concepts": {"texts": list(concepts.texts), "checksum": concepts.checksum} if concepts else None,
        "init_weights": bool(config.model.init_weights),
        "compression": compression,
        "privacy": dict(privacy) if privacy else None,
    }


@dataclass(frozen=True)
class Terms:
    """Terms as a node has understood and accepted them."""

    run: str
    config: Config
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    values: Mapping[str, Any]
    digest: str

    def task(self, parts: Mapping[str, State]) -> Task:
        """The task that the server has."""
        from fedbm.language.concepts import ConceptDistribution

        values = self.values["task"]
        concepts = None
        if (said := self.values["concepts"]) is not None:
            embeddings = parts[CONCEPTS]["embeddings"]
            concepts = ConceptDistribution.fit(self.classes, said["texts"], embeddings, {})
            if concepts.checksum != said["checksum"]:
                raise Refusal("terms")
        make = resnet_factory(self.config.model, self.shape[0])
        if self.values["init_weights"]:
            random = make

            def make() -> Any:
                body = random()
                load_weights(body, dict(parts[INIT]), "the server's initial weights")
                return body

        return Task(
            classes=self.classes,
            shape=self.shape,
            mean=tuple(values["mean"]),
            std=tuple(values["std"]),
            seed=self.config.train.seed,
            make_body=make,
            concepts=concepts,
            hflip=values["hflip"],
            vflip=values["vflip"],
        )


def accept_terms(values: Any) -> Terms:
    """What a node makes of the terms it was sent: every value is checked, and nothing but fedbm's own methods runs."""
    try:
        theirs = values["versions"]
        if theirs["protocol"] != PROTOCOL:
            raise Refusal("protocol")
        if theirs["fedbm"] != __version__:
            raise Refusal("version")
        config = make_config({section: values[section] for section in ("method", "train", "model")})
        task, run = values["task"], values["run"]
        classes, shape = tuple(task["classes"]), tuple(task["shape"])
        sound = (
            safe_name(run)
            and not config.method.central
            and 2 <= len(classes) <= 10_000
            and all(isinstance(name, str) for name in classes)
            and len(set(classes)) == len(classes)
            and len(shape) == 3
            and all(type(n) is int and 0 < n <= 1 << 14 for n in shape)
            and len(task["mean"]) == len(task["std"]) == shape[0]
            and all(isinstance(n, float | int) for n in (*task["mean"], *task["std"]))
            and values["compression"] in ("none", "half", "delta")
            and (values["concepts"] is None or len(values["concepts"]["texts"]) == len(classes))
            and not config.model.init_weights
            and _is_privacy(values["privacy"], config.method.shares)
        )
        if not sound:
            raise Refusal("terms")
        return Terms(run, config, classes, (shape[0], shape[1], shape[2]), values, digest_of(values))
    except (FedBMError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refusal("terms") from error


def _is_privacy(value: Any, shares: tuple[str, ...]) -> bool:
    """Return whether noise, clip and delta are in range and the method sends no exact counts; None is fine too."""
    if value is None:
        return True
    limits = PRIVACY_LIMITS.items()
    sound = all(isinstance(value[key], float) and least <= value[key] <= most for key, (least, most) in limits)
    return sound and "label_counts" not in shares


def safe_name(name: Any) -> bool:
    """Whether a name from elsewhere may become a file's: letters, digits, dots, dashes; never a path."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}", name) is not None


@dataclass(frozen=True)
class CensusRules:
    """What a run asks of the census, and the bounds it sets."""

    classes: tuple[str, ...]
    nodes: int
    max_samples: int  # of each split
    shares_counts: bool  # the method shares label counts
    evaluates: bool  # nodes score the model on images of their own


@dataclass(frozen=True)
class Census:
    """A node as it describes itself."""

    client: int
    name: str
    classes: tuple[str, ...]
    facts: Facts
    scored: dict[str, int]  # side → number of its val or test images; empty where nodes do not evaluate
    holds: dict[str, str]  # part → digest of the one it has
    head: str  # of its audit
    versions: dict[str, str]


def read_census(body: Mapping[str, Any], rules: CensusRules) -> Census:
    """A node's answer to the census, checked; FedBMError says why it cannot take part."""
    theirs = field(body, "versions", dict)
    mine = versions()
    for what in ("protocol", "fedbm"):
        if theirs.get(what) != mine[what]:
            raise FedBMError(
                f"it has {what} {plain(theirs.get(what))} and the server has {mine[what]}: install the same"
            )
    client, n, nodes, classes = field(body, "client", int), field(body, "n", int), rules.nodes, rules.classes
    if not 0 <= client < nodes:
        raise FedBMError(f"it is client {plain(client)}, but this run has nodes = {nodes}, so clients 0 to {nodes - 1}")
    own = tuple(field(body, "classes", list))
    if unknown := [name for name in own if name not in classes]:
        known = ", ".join(classes)
        raise FedBMError(f'it has the class "{plain(unknown[0])}", which this run does not know: {known}')
    scored = {side: field(body, side, int) for side in SCORED} if rules.evaluates else {}
    for what, count in {"training": n, **scored}.items():
        if count < (what == "training"):
            raise FedBMError(f"it has {plain(count)} {what} images")
        if count > rules.max_samples:
            raise FedBMError(
                f"it claims {plain(count)} {what} images, above max_samples = {rules.max_samples} in server.toml"
            )
    if not rules.evaluates and any(side in body for side in SCORED):
        raise FedBMError("it told how many val and test images it has, which this run does not ask for")
    counts: tuple[int, ...] = ()
    if rules.shares_counts:
        counts = tuple(field(body, "label_counts", list))
        if len(counts) != len(classes) or any(type(k) is not int or k < 0 for k in counts) or sum(counts) != n:
            raise FedBMError("its label counts are not those of its training images")
    elif "label_counts" in body:
        raise FedBMError("it told its label counts, which this method does not ask for")
    holds = {str(part): str(digest) for part, digest in field(body, "holds", dict).items()}
    name = plain(field(body, "name", str))
    told = {what: plain(theirs.get(what)) for what in mine}
    return Census(client, name, own, Facts(client, n, counts), scored, holds, plain(body.get("head")), told)


def sentence(body: Mapping[str, Any], classes: tuple[str, ...]) -> str:
    """A site's refusal in words; what it may tell beside the code is named."""
    code, theirs = body.get("code"), body.get("versions")
    why = f"it {REFUSALS.get(str(code), 'answered with a code that is not known')}"
    if code in ("protocol", "version") and isinstance(theirs, dict):
        who, fedbm = plain(body.get("name", "it")), plain(theirs.get("fedbm"))
        return f"{who} {REFUSALS[code]}: fedbm {fedbm} where the server has {__version__}; install the same"
    if code == "classes" and isinstance(body.get("classes"), list):
        unknown = [plain(name) for name in body["classes"] if name not in classes]
        return f"{why}: {', '.join(unknown[:3])}; the run has {', '.join(classes)}"
    return why


T = TypeVar("T")


def field(body: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """body[key], of that very type; FedBMError otherwise."""
    value = body.get(key)
    if type(value) is not kind:
        raise FedBMError(f"its answer has no {key} that can be read")
    return value


def plain(value: Any, most: int = 70) -> str:
    """Return what the other side said, fit for a sentence: printable, and at most *most* characters."""
    return "".join(c if c.isprintable() else "?" for c in str(value))[:most]
