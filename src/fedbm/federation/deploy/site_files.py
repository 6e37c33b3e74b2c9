"""The folders of a federation: one for the server, one for each node, each complete and movable.

    DIR/federation.toml  names them all; it and DIR/authority stay with the operator
    DIR/server/          server.toml, certificate and key, the nodes' public keys
    DIR/<node>/          node.toml, its key pair, ca.crt: all that a hospital is handed

Every command takes DIR or one of the folders in it. Paths within a TOML are relative to where it stands.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from fedbm.config.options import check, option
from fedbm.errors import FedBMError, did_you_mean

FORMAT = 1
FILES = {"federation": "federation.toml", "server": "server.toml", "node": "node.toml"}
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST = re.compile(rf"({LABEL}\.)*(?![0-9]+$){LABEL}")  # the last part is never a number: 10.0.0.300 is no name


@dataclass(frozen=True)
class Whole:
    """DIR itself: what `fedbm federation init` was told."""

    name: str = option("federation", "what the federation is called")
    nodes: str = option("", "the nodes' names, in the order of their client numbers, with commas")

    def folders(self, folder: Path) -> list[Path]:
        return [folder / name for name in self.nodes.split(",")]


@dataclass(frozen=True)
class Server:
    """The server's folder. The SuperLink listens on this machine's loopback alone; nginx is what others reach."""

    host: str = option("127.0.0.1", "the name or address at which nodes reach the server")
    port: int = option(8000, "the port at which nodes reach it", least=1, most=65535)
    link_port: int = option(8000, "the SuperLink's own port on loopback", least=1, most=65535)
    nodes: str = option(
        "", "the nodes' names, in the order of their client numbers, with commas; keep the place of one that left"
    )
    max_samples: int = option(1_000_000, "the most images that a node may claim for training, val or test", least=1)

    @property
    def places(self) -> dict[int, str]:
        """Client number → name."""
        return {client: name for client, name in enumerate(self.nodes.split(",")) if name}

    @property
    def names(self) -> list[str]:
        return list(self.places.values())


@dataclass(frozen=True)
class Node:
    """A node's folder. It opens connections to the server and listens on this machine's loopback alone."""

    client: int = option(0, "this node's number in the federation, from 0", least=0)
    name: str = option("", "what the server's operator and the audit call this node")
    server: str = option("127.0.0.1:8000", "host:port of the server")
    runtime_port: int = option(8001, "a free port on loopback for Flower's own use", least=1, most=65535)
    data: str = option("", "this node's images: a folder, archive, table or .npz; a relative path starts here")
    size: int | None = option(
        None, "side of the images in pixels, as the run has it: they are then prepared at once", least=16
    )
    channels: Literal[1, 3] | None = option(None, "1 grey or 3 colour, as the run has it")
    device: str = option("auto", "cpu, cuda, cuda:N, or auto: cuda where there is one")
    threads: int = option(0, "CPU threads of training; 0: as the machine is set up", least=0, most=1024)

    def images(self, folder: Path, given: str = "", otherwise: str = "say --data PATH") -> str:
        """What to read: *given*, from here, or `data`, from the node's folder; absolute, for Flower works elsewhere.

        *otherwise* is what the caller's user can do where there is neither.
        """
        if not (data := given or self.data):
            raise FedBMError(f"{self.name} has no images yet: set data in {folder / 'node.toml'}, or {otherwise}")
        place = Path(data).expanduser() if given else folder / Path(data).expanduser()
        return str(place.resolve()) if place.exists() else data


def read(folder: Path, kind: type) -> Any:
    """The settings in *folder* as *kind* declares them, every key checked."""
    path = folder / FILES[{Whole: "federation", Server: "server", Node: "node"}[kind]]
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedBMError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FedBMError(f"{path} is not valid TOML: {error}") from error
    if (form := values.pop("format", None)) != FORMAT:
        raise FedBMError(f"{path} has format {form}; this version of fedbm reads format {FORMAT}")
    known = list(get_type_hints(kind))
    for key in values:
        if key not in known:
            raise FedBMError(f'{path} has no key "{key}"{did_you_mean(key, known)}')
    try:
        return kind(**{key: check(kind, key, value) for key, value in values.items()})
    except FedBMError as error:
        raise FedBMError(f"{path}: {error}") from error


def to_text(settings: Any) -> str:
    """The settings as TOML, each under its meaning."""
    lines = [f"format = {FORMAT}", ""]
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        told = f"# {f.name} is not set" if value is None else f"{f.name} = {json.dumps(value, ensure_ascii=False)}"
        lines += [f"# {f.metadata['meaning']}", told]
    return "\n".join([*lines, ""])


def kind_of(folder: Path, otherwise: str = "") -> str:
    """'federation', 'server' or 'node'; where the folder is none of them, FedBMError with the advice *otherwise*."""
    for kind, file in FILES.items():
        if (folder / file).is_file():
            return kind
    if folder.exists():
        advice = otherwise or "'fedbm federation init' makes one where nothing is yet"
        raise FedBMError(f"{folder} is no folder of a federation; {advice}")
    beside = [path.name for path in folder.parent.glob("*/")] if folder.parent.is_dir() else []
    near = did_you_mean(folder.name, beside)
    advice = otherwise or f"'fedbm federation init {folder}' makes a new federation"
    raise FedBMError(f"{folder} is not there{near}; {advice}")


def server_folder(folder: Path) -> Path:
    """The server's folder that *folder* means: itself, or the one in it."""
    kind = kind_of(folder)
    if kind == "node":
        raise FedBMError(f"{folder} is a node's folder; this is for the server's, or for the folder that holds both")
    return folder if kind == "server" else folder / "server"


def node_folder(folder: Path) -> Path:
    """*folder*, if it is a node's."""
    kind = kind_of(folder, otherwise="give the folder that the server's operator handed over, with node.toml in it")
    if kind == "federation":
        names = read(folder, Whole).nodes.split(",")
        raise FedBMError(f"{folder} holds {len(names)} nodes: say which, such as {folder / names[0]}")
    if kind == "server":
        raise FedBMError(f"{folder} is the server's folder; a node's has a node.toml in it")
    return folder


def all_folders(folder: Path) -> list[Path]:
    """Every role's folder that *folder* holds: the server's and all nodes' that are here, or just itself."""
    if kind_of(folder) != "federation":
        return [folder]
    nodes = [node for node in read(folder, Whole).folders(folder) if node.is_dir()]
    return [folder / "server", *nodes]


def check_host(host: str) -> None:
    """It goes into certificates, nginx.conf and the nodes' settings as it is; a certificate holds 64 letters."""
    try:
        ipaddress.ip_address(host)
        good = "%" not in host  # an interface of this machine means nothing to others
    except ValueError:
        good = len(host) <= 64 and HOST.fullmatch(host) is not None
    if not good:
        raise FedBMError(
            f'the host must be a DNS name, such as fl.example.org, or an IP address, not "{host}"; '
            "a port is given by --port"
        )


def check_names(names: list[str]) -> None:
    for name in names:
        if not NAME.fullmatch(name) or name in ("server", "authority"):
            raise FedBMError(
                f'a node cannot be called "{name}": take small letters, digits and hyphens, not server or authority'
            )
    if len(set(names)) < len(names):
        raise FedBMError("two nodes have the same name; each needs its own")
