"""Register the nodes of server.toml with the SuperLink, and find out which node each of its ids belongs to.

The SuperLink gives every registered public key one node id, and admits only a node that signs with that key. So the
node id of a reply identifies its sender, whatever the reply contains.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedbm.errors import FedBMError
from fedbm.federation.deploy.certificates import read_public_key
from fedbm.federation.deploy.flower import call_control
from fedbm.federation.deploy.settings_files import ServerSettings

FINGERPRINT_LENGTH = 16  # characters of the SHA-256 in base64, 96 bits


@dataclass(frozen=True)
class Registered:
    """A node that the server's operator has registered."""

    client: int
    name: str
    node: str  # Flower's node id, as text because it has 64 bits
    key: str  # fingerprint of its public key

    def identify(self) -> dict[str, Any]:
        """Return the fields that identify this node in an audit line."""
        return dict(vars(self))


def fingerprint(public_key: str) -> str:
    """Return the first characters of the fingerprint that `ssh-keygen -lf node.pub` shows."""
    blob = base64.b64decode(public_key.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode()[:FINGERPRINT_LENGTH]


def register(folder: Path, server: ServerSettings) -> None:
    """Register exactly the nodes of server.toml.

    Keys that server.toml no longer names are removed. Keys that are already registered keep their node id.
    """
    owners, known = read_public_keys(folder, server), known_keys(folder)
    for key, node in known.items():
        if node is not None and key not in owners.values():
            call_control(folder, "unregister-node", node_id=node)
    for name, key in owners.items():
        if key not in known:
            pem = load_ssh_public_key(key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            call_control(folder, "register-node", public_key=pem, name=name)
        elif known[key] is None:
            raise FedBMError(f"the key of {name} was removed before; 'fedbm federation rekey' makes a new one")


def find_registered(folder: Path, server: ServerSettings) -> dict[int, Registered]:
    """Return the nodes of server.toml by Flower's node id, without nodes that wait for the server's next start."""
    owners, known = read_public_keys(folder, server), known_keys(folder)
    found = {}
    for client, name in server.places.items():
        if node := known.get(owners[name]):
            found[node] = Registered(client, name, str(node), fingerprint(owners[name]))
    return found


def known_keys(folder: Path) -> dict[str, int | None]:
    """Return the node id of each key that was ever registered at the SuperLink, or None if it was removed."""
    found = {}
    for node in call_control(folder, "list-nodes").nodes_info:
        key = load_pem_public_key(node.public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        found[key] = None if node.status == "unregistered" else node.node_id
    return found


def read_public_keys(folder: Path, server: ServerSettings) -> dict[str, str]:
    """Return the public key of each node of server.toml, without its comment; no two nodes have the same."""
    owners = {name: read_public_key(folder / "nodes" / f"{name}.pub") for name in server.names}
    if len(set(owners.values())) < len(owners):
        raise FedBMError(f"two nodes have the same public key in {folder / 'nodes'}; each needs its own")
    return owners
