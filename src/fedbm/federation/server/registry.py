"""registered.json: the node that each Flower node id belongs to.

The SuperLink gives every registered public key one node id, and admits only a node that signs with that key. So the
node id of a reply identifies its sender, whatever the reply itself claims.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.utils.io import read_json, write_json

FORMAT = 1
FILE = "registered.json"
FINGERPRINT_LENGTH = 16  # characters of the SHA-256 in base64, 96 bits


@dataclass(frozen=True)
class Registered:
    """A node that the server's operator has registered."""

    node: int  # Flower's node id
    client: int
    name: str
    key: str  # fingerprint of its public key

    def identify(self) -> dict[str, Any]:
        """Return the fields that identify this node in an audit line. The 64-bit id is text in JSON."""
        return {"client": self.client, "name": self.name, "node": str(self.node), "key": self.key}


def fingerprint(public_key: str) -> str:
    """Return the first characters of the fingerprint that `ssh-keygen -lf node.pub` shows."""
    try:
        blob = base64.b64decode(public_key.split()[1], validate=True)
    except (IndexError, binascii.Error) as error:
        raise FedBMError("a node's public key is not in OpenSSH's format; copy its node.pub again") from error
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode()[:FINGERPRINT_LENGTH]


def write_registry(folder: Path, nodes: Iterable[Registered]) -> None:
    """Write registered.json into the server's *folder*."""
    write_json(folder / FILE, {"format": FORMAT, "nodes": [node.identify() for node in nodes]})


def read_registry(folder: Path) -> Mapping[int, Registered]:
    """Return the registered nodes of the server in *folder* by Flower's node id; raise FedBMError if it cannot."""
    path = folder / FILE
    advice = "restart the server to write it again"
    try:
        values = read_json(path)
        if values["format"] != FORMAT:
            raise ValueError("format")
        nodes = [Registered(int(n["node"]), int(n["client"]), str(n["name"]), str(n["key"])) for n in values["nodes"]]
    except FedBMError as error:
        raise FedBMError(f"{error}; {advice}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FedBMError(f"{path} does not list the registered nodes; {advice}") from error
    return {node.node: node for node in nodes}
