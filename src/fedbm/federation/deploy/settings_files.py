"""The settings files of a federation, and the folders that contain them.

    DIR/server/          server.toml with the names of all nodes, certificate and key, the nodes' public keys
    DIR/<node>/          node.toml, key pair and ca.crt: everything a hospital receives
    DIR/<node>/state/    what the node keeps, and refused.json: why the server refuses it
    DIR/authority/       stays with the operator

Every command takes DIR or a folder in it. Paths in a TOML file are relative to its folder.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

from fedbm.config.keys import build_options
from fedbm.config.options import option
from fedbm.errors import FedBMError, prefix_errors
from fedbm.utils.io import parse_toml, read_json, read_text, write_json

T = TypeVar("T")

FORMAT = 1
HERE = "127.0.0.1"
REFUSAL = "refused.json"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
HOST = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")


@dataclass(frozen=True)
class ServerSettings:
    """server.toml. The SuperLink listens on loopback only; others reach nginx in front of it."""

    FILE: ClassVar = "server.toml"

    host: str = option(HERE, "the name or address at which nodes reach the server")
    port: int = option(8000, "the port at which nodes reach it", least=1, most=65535)
    link_port: int = option(8000, "the SuperLink's own port on loopback", least=1, most=65535)
    nodes: str = option("", "names in the order of client numbers, with commas; a former node leaves an empty place")
    max_samples: int = option(1_000_000, "the most images that a node may claim for training, val or test", least=1)
    rehearsal: bool = option(False, "new nodes get open rules: they accept every run without an approval")

    @property
    def places(self) -> dict[int, str]:
        """Client number → name."""
        return {client: name for client, name in enumerate(self.nodes.split(",")) if name}

    @property
    def names(self) -> list[str]:
        return list(self.places.values())


@dataclass(frozen=True)
class Policy:
    """[policy] in node.toml: what this site allows. `node/policy_checks.py` applies the rules."""

    approval: bool = option(True, "a person must approve each run here: fedbm federation approve")
    methods: str = option("all", "methods this site trains with, with commas, or all")
    max_rounds: int = option(1000, "the most rounds of a run", least=1)
    min_per_class: int = option(5, "least images of each class that the site has, in train, val and test", least=1)
    scores: bool = option(True, "confusion matrices on this site's val and test images may leave")
    label_counts: bool = option(False, "the number of images per class may leave, for methods that need it")
    min_noise: float = option(0.0, "least noise multiplier of differential privacy; 0: a run may add no noise", least=0)
    max_epsilon: float | None = option(None, "largest ε over all runs here; then each must add noise", above=0)
    delta: float = option(1e-5, "δ at which max_epsilon is checked", above=0, below=1)

    @property
    def method_names(self) -> list[str]:
        return [name.strip() for name in self.methods.split(",")]


OPEN_POLICY = Policy(approval=False, min_per_class=1, label_counts=True)  # for a rehearsal on one machine


@dataclass(frozen=True)
class NodeSettings:
    """node.toml. A node connects to the server and listens nowhere."""

    FILE: ClassVar = "node.toml"

    client: int = option(0, "this node's number in the federation, from 0", least=0)
    name: str = option("", "what the server's operator and the audit call this node")
    server: str = option("127.0.0.1:8000", "host:port of the server")
    data: str = option("", "this node's images: a folder, archive, table or .npz; a relative path starts here")
    size: int | None = option(None, "pixels, as in the run: images are then prepared when the node starts", least=16)
    channels: Literal[1, 3] | None = option(None, "1 grey or 3 colour, as in the run")
    device: str = option("auto", "cpu, cuda, cuda:N, or auto: cuda where there is one")
    threads: int = option(0, "CPU threads of training; 0: as the machine is set up", least=0, most=1024)
    policy: Policy = field(default_factory=Policy)

    def images(self, folder: Path, given: str = "") -> str:
        """Return the images to read, as an absolute path: *given*, or `data` relative to the node's folder."""
        if not (data := given or self.data):
            remedy = f"set data in {folder / 'node.toml'}, use --data, or run 'fedbm federation partition' to rehearse"
            raise FedBMError(f"{self.name} has no images: {remedy}")
        place = Path(data).expanduser() if given else folder / Path(data).expanduser()
        return str(place.resolve()) if place.exists() else data


def read_settings(folder: Path, kind: type[T]) -> T:
    """Read the settings of this kind in *folder* and check every key. A key that is not set has its default."""
    path = folder / cast(Any, kind).FILE
    values = parse_toml(read_text(path), str(path))
    if (form := values.pop("format", None)) != FORMAT:
        raise FedBMError(f"{path} has format {form}; this version of fedbm reads format {FORMAT}")
    section = values.pop("policy", {}) if kind is NodeSettings else {}
    with prefix_errors(str(path)):
        settings = build_options(kind, values, "it")
        if isinstance(settings, ServerSettings):
            check_names(settings.names)
        if isinstance(settings, NodeSettings):
            if not isinstance(section, dict):
                raise FedBMError("policy must be a section, [policy]")
            settings = replace(settings, policy=build_options(Policy, section, "[policy]"))
        return settings


def to_text(settings: ServerSettings | NodeSettings) -> str:
    """Return the settings as TOML, each key with a comment that explains it."""
    lines = [f"format = {FORMAT}", "", *_lines(settings)]
    if isinstance(settings, NodeSettings):
        note = "# This site's own rules. A change applies to the next request."
        lines += ["", "[policy]", note, *_lines(settings.policy)]
    return "\n".join([*lines, ""])


def _lines(settings: Any) -> list[str]:
    lines = []
    for key in dataclasses.fields(settings):
        if "meaning" in key.metadata:
            value = getattr(settings, key.name)
            line = f"{key.name} = {json.dumps(value, ensure_ascii=False)}"
            lines += [f"# {key.metadata['meaning']}", line if value is not None else f"# {key.name} is not set"]
    return lines


def whole_folder(folder: Path) -> Path:
    """Return *folder* if it contains a whole federation, otherwise raise FedBMError."""
    return _check_file(folder, "server/server.toml", "the folder that 'fedbm federation init' made")


def server_folder(folder: Path) -> Path:
    """Return the server's folder: *folder* itself or the one in it."""
    home = folder if (folder / "server.toml").is_file() else folder / "server"
    return _check_file(home, "server.toml", "the server's folder, or the one that contains it")


def node_folder(folder: Path) -> Path:
    """Return *folder* if it is a node's, otherwise raise FedBMError."""
    return _check_file(folder, "node.toml", "the folder of one node, such as study/hospital-1")


def _check_file(folder: Path, file: str, needed: str) -> Path:
    if not (folder / file).is_file():
        raise FedBMError(f"there is no {folder / file}; give {needed}")
    return folder


def all_folders(folder: Path) -> list[Path]:
    """Return *folder*, or for a whole federation the server's folder and those of all nodes on this machine."""
    if (folder / "node.toml").is_file():
        return [folder]
    home = server_folder(folder)
    nodes = [folder / name for name in read_settings(home, ServerSettings).names] if home != folder else []
    return [home, *(node for node in nodes if node.is_dir())]


def write_refusal(state: Path, why: str) -> None:
    """Write why the server refuses a node. A node that starts or gets work removes the file again."""
    write_json(state / REFUSAL, {"format": 1, "why": why, "time": datetime.now(UTC).isoformat(timespec="seconds")})


def read_refusal(state: Path) -> str:
    """Return the server's reason, or '' if the server has not refused this node."""
    try:
        return str(read_json(state / REFUSAL)["why"])
    except (FedBMError, KeyError):  # there is none, or it is damaged
        return ""


def clear_refusal(state: Path) -> None:
    (state / REFUSAL).unlink(missing_ok=True)


def is_host(host: str) -> bool:
    """Return whether *host* is a DNS name of at most 64 characters or an IP address without a zone."""
    try:
        ipaddress.ip_address(host)
        return "%" not in host
    except ValueError:
        return len(host) <= 64 and HOST.fullmatch(host) is not None


def check_names(names: list[str]) -> None:
    for name in names:
        if not NAME.fullmatch(name) or name in ("server", "authority"):
            raise FedBMError(f'a node cannot be called "{name}": use a-z, 0-9 and hyphens, not server or authority')
    if len(set(names)) < len(names):
        raise FedBMError("two nodes have the same name; each needs its own")
