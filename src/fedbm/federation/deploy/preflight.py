"""Check a role before it reports that it is ready; each error message explains what to do."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedbm.errors import FedBMError, did_you_mean
from fedbm.federation.deploy import certificates
from fedbm.federation.deploy.flower import check_flower, connect
from fedbm.federation.deploy.settings_files import NodeSettings, read_policy
from fedbm.version import __version__

TIMEOUT_S = 10.0
HOST = re.compile(r"[\w.:%-]+")  # a name in any network, or an address
SUPERLINK_STATUS = 415  # the answer of a SuperLink to a message without content
REMEDY = "this folder's ca.crt must be the one that its operator made"
REMEDIES = {  # by OpenSSL's code of the error
    9: "check this machine's clock",  # not yet valid
    10: "check this machine's clock, and ask the operator to renew the certificate",  # expired
}
GATEWAY_ERRORS = (502, 503, 504)  # the reverse proxy answers with these if its SuperLink does not respond


def check_server_folder(folder: Path) -> list[str]:
    """Check versions, key and certificate of the server's folder, and return lines that describe them."""
    certificates.check_private(folder / "server.key")
    certificates.check_signed(folder / "server.pem", folder / "ca.crt")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.pem", folder / "server.key")
    except OSError as error:  # of OpenSSL, too
        raise FedBMError(
            f"{folder / 'server.key'} is not the key of server.pem; 'fedbm federation renew' makes both: copy both here"
        ) from error
    return [describe_versions(), *(describe_validity(folder / name) for name in ("server.pem", "ca.crt"))]


def check_node_folder(folder: Path) -> list[str]:
    """Check versions, key and authority of a node's folder, and return lines that describe them."""
    certificates.check_node_key(folder / "node.key", folder / "node.pub")
    return [describe_versions(), describe_validity(folder / "ca.crt"), describe_policy(folder)]


def describe_policy(folder: Path) -> str:
    """Return this site's rules in one line; raise FedBMError if they name a method that is not installed."""
    from fedbm.methods import all_methods

    policy = read_policy(folder)
    for name in policy.method_names if policy.methods != "all" else ():
        if name not in (known := all_methods()):
            raise FedBMError(
                f'methods in [policy] of {folder / "node.toml"} has "{name}", which is not an installed method'
                f"{did_you_mean(name, known)}. Correct the name"
            )
    rules = [f"{key} = {json.dumps(value)}" for key, value in dataclasses.asdict(policy).items() if value is not None]
    waits = "; each run waits for 'fedbm federation approve'" if policy.approval else ""
    return f"policy: {', '.join(rules)}{waits}"


def describe_versions() -> str:
    return f"fedbm {__version__}, flwr {check_flower()}"


def describe_validity(path: Path, now: datetime | None = None) -> str:
    """Return when the certificate expires, with a warning in its last days."""
    now = now or datetime.now(UTC)
    end = certificates.check_certificate(path, now)
    words = f"{path.name} is valid until {certificates.format_time(end)}"
    return f"warning: {words}; renew it soon" if end - now < timedelta(days=certificates.WARN_DAYS) else words


def check_data(node: NodeSettings, data: str) -> str:
    """Read the node's images, prepare them if necessary, and return a line with their numbers."""
    from fedbm.data.cache import DamagedError
    from fedbm.federation.node.node_data import open_images

    try:
        found = open_images(data, node.size, node.channels, verify=True)
    except DamagedError as error:
        raise FedBMError(f"the prepared images in {data} are damaged ({error}); prepare them again") from error
    except FedBMError as error:
        if "--" not in str(error):
            raise
        raise FedBMError(
            f"{error}. A node has no such option: run 'fedbm data prepare {data}' with it, and give the node the "
            "folder that this prints."
        ) from error
    train = int((found.split == 0).sum())
    if train == 0:
        raise FedBMError(f"{data} has no training images")
    side, depth = found.images.shape[2:]
    return (
        f"images: {len(found.labels):,} of {len(found.classes)} classes, {train:,} of them for training, "
        f"{side} pixels, {'colour' if depth == 3 else 'grey'}"
    )


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of 'host:port'; an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        is_name = HOST.fullmatch(host) is not None and bool(host.encode("idna"))
    except UnicodeError:  # it has an empty or a long part
        is_name = False
    if not (is_name and port.isdecimal() and 0 < int(port) < 65536):
        raise FedBMError(f'server = "{address}" in node.toml must be host:port, such as "fl.example.org:443"')
    return host, int(port)


def check_server(node: NodeSettings, authority: Path) -> str:
    """Check that a SuperLink with a certificate of our authority answers at the node's server address."""
    host, port = split_address(node.server)
    where = f"{host}:{port}"
    connection = connect(host, port, authority, TIMEOUT_S)
    try:
        connection.connect()
        connection.request("POST", "/v1/fleet/activate-node")
        response = connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        raise FedBMError(
            f"the server at {where} is not trusted: {error.verify_message.strip().rstrip('.')}; "
            f"{REMEDIES.get(error.verify_code, REMEDY)}"
        ) from error
    except ssl.SSLError as error:
        raise FedBMError(f"the program at {where} does not use TLS; ask the operator for the right port") from error
    except (OSError, http.client.HTTPException) as error:
        raise FedBMError(
            f"no server answers at {where} ({getattr(error, 'strerror', None) or error}); check server in node.toml, "
            "this machine's DNS, whether the server is running, and whether a firewall blocks outbound connections"
        ) from error
    finally:
        connection.close()
    if response.status in GATEWAY_ERRORS:
        raise FedBMError(
            f"the reverse proxy at {where} answers, but its SuperLink does not; ask the operator to start it"
        )
    if response.status != SUPERLINK_STATUS:
        raise FedBMError(
            f"the program at {where} is not a SuperLink (it answered {response.status}); check server in node.toml"
        )
    return f"server {where}: reached, its certificate is trusted"
