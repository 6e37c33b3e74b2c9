"""Register the nodes of server.toml with the SuperLink, and find out which node each of its ids belongs to.

The SuperLink gives every registered public key one node id, and admits only a node that signs with that key. So the
node id of a reply identifies its sender, whatever the reply contains.

Only the SuperLink knows which node id belongs to which key. `flwr supernode list` shows node ids without keys, and
`flwr supernode register` refuses a known key without naming its node id. So the SuperLink is asked directly.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from fedbm.errors import FedBMError
from fedbm.federation.deploy.certificates import read_public_key
from fedbm.federation.deploy.flower import LINK, call_flwr, connect
from fedbm.federation.deploy.settings_files import ServerSettings

FINGERPRINT_LENGTH = 16  # characters of the SHA-256 in base64, 96 bits
TIMEOUT_S = 30.0


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
    owners, known = read_public_keys(folder, server), known_keys(folder, server)
    for key, node in known.items():
        if node is not None and key not in owners.values():
            call_flwr(folder, "supernode", "unregister", str(node), LINK)
    for name, key in owners.items():
        if key not in known:
            call_flwr(folder, "supernode", "register", f"nodes/{name}.pub", LINK, "--name", name)
        elif known[key] is None:
            raise FedBMError(
                f"the key of {name} was removed before, and Flower never accepts such a key again; "
                f"'fedbm federation rekey DIR {name}' makes a new one"
            )


def find_registered(folder: Path, server: ServerSettings) -> dict[int, Registered]:
    """Return the nodes of server.toml by Flower's node id, without nodes that wait for the server's next start."""
    owners, known = read_public_keys(folder, server), known_keys(folder, server)
    pairs = [(known.get(owners[name]), client, name) for client, name in server.places.items()]
    return {
        node: Registered(client, name, str(node), fingerprint(owners[name]))
        for node, client, name in pairs
        if node is not None
    }


def known_keys(folder: Path, server: ServerSettings) -> dict[str, int | None]:
    """Return the node id of each key that was ever registered at the SuperLink, or None if it was removed."""
    from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse

    connection = connect("127.0.0.1", server.link_port, folder / "ca.crt", TIMEOUT_S)
    headers = {"Content-Type": "application/protobuf"}
    try:
        connection.request("POST", "/v1/control/list-nodes", ListNodesRequest().SerializeToString(), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise FedBMError(f"the SuperLink did not list its nodes: it answered {answer.status}")
        nodes = ListNodesResponse.FromString(answer.read()).nodes_info
        keys = [load_pem_public_key(node.public_key) for node in nodes]
        texts = [key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() for key in keys]
        ids = [None if node.status == "unregistered" else node.node_id for node in nodes]
        return dict(zip(texts, ids, strict=True))
    except (OSError, http.client.HTTPException, ValueError, UnsupportedAlgorithm) as error:
        raise FedBMError(f"the SuperLink did not list its nodes: {error}") from error
    finally:
        connection.close()


def read_public_keys(folder: Path, server: ServerSettings) -> dict[str, str]:
    """Return the public key of each node of server.toml, without its comment; no two nodes have the same."""
    owners = {name: read_public_key(folder / "nodes" / f"{name}.pub") for name in server.names}
    if twice := [name for name, key in owners.items() if list(owners.values()).count(key) > 1]:
        raise FedBMError(f"{' and '.join(twice)} have the same public key in {folder / 'nodes'}; each needs its own")
    return owners
