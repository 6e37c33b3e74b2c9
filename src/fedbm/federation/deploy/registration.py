"""Register the nodes of server.toml with the SuperLink, and record the node id of each key.

Only the SuperLink knows which node id belongs to which key. `flwr supernode list` shows node ids without keys, and
`flwr supernode register` refuses a known key without naming its node id. So the SuperLink is asked directly.
"""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from fedbm.errors import FedBMError
from fedbm.federation.deploy.flower import LINK, call_flwr
from fedbm.federation.deploy.site_files import Server
from fedbm.federation.server.registry import Registered, fingerprint, write_registry

TIMEOUT_S = 30.0


class Known(NamedTuple):
    """A key's entry at the SuperLink."""

    node: int
    registered: bool  # False once it was removed; Flower never accepts such a key again


def register(folder: Path, server: Server) -> None:
    """Register exactly the nodes of server.toml and write registered.json.

    Keys that server.toml no longer names are removed. Keys that are already registered keep their node id.
    """
    owners = {name: read_public_key(folder, name) for name in server.names}
    if twice := [name for name, key in owners.items() if list(owners.values()).count(key) > 1]:
        raise FedBMError(f"{' and '.join(twice)} have the same public key in {folder / 'nodes'}; each needs its own")
    known = known_keys(folder, server)
    for key, entry in known.items():
        if entry.registered and key not in owners.values():
            call_flwr(folder, "supernode", "unregister", str(entry.node), LINK)
    nodes = []
    for client, name in server.places.items():
        key = owners[name]
        if (found := known.get(key)) is None:
            answer = call_flwr(folder, "supernode", "register", f"nodes/{name}.pub", LINK, "--name", name)
            found = Known(int(answer["node-id"]), registered=True)
        elif not found.registered:
            raise FedBMError(
                f"the key of {name} was removed before, and Flower never accepts such a key again; "
                f"'fedbm federation rekey DIR {name}' makes a new one"
            )
        nodes.append(Registered(found.node, client, name, fingerprint(key)))
    write_registry(folder, nodes)


def known_keys(folder: Path, server: Server) -> dict[str, Known]:
    """Return all keys that were ever registered at the SuperLink, in the format of node.pub."""
    from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse

    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", server.link_port, timeout=TIMEOUT_S, context=context)
    headers = {"Content-Type": "application/protobuf"}
    try:
        connection.request("POST", "/v1/control/list-nodes", ListNodesRequest().SerializeToString(), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise FedBMError(f"the SuperLink did not list its nodes: it answered {answer.status}")
        nodes = ListNodesResponse.FromString(answer.read()).nodes_info
        return {_to_openssh(node.public_key): Known(node.node_id, node.status != "unregistered") for node in nodes}
    except (OSError, http.client.HTTPException, ValueError, UnsupportedAlgorithm) as error:
        raise FedBMError(f"the SuperLink did not list its nodes: {error}") from error
    finally:
        connection.close()


def _to_openssh(pem: bytes) -> str:
    return load_pem_public_key(pem).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def read_public_key(folder: Path, name: str) -> str:
    """Return a node's public key from server/nodes, without its comment."""
    path = folder / "nodes" / f"{name}.pub"
    try:
        return " ".join(path.read_text(encoding="utf-8").split()[:2])
    except OSError as error:
        raise FedBMError(f"the public key {path} of node {name} in server.toml is missing; copy it there") from error
