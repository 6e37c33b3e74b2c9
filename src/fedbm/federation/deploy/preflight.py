"""What is looked at before a role says it is ready; every lack ends in one sentence that says what to do."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

from fedbm.errors import FedBMError
from fedbm.federation.deploy.certificates import (
    WARN_DAYS,
    check_certificate,
    check_node_key,
    check_private,
    check_signed,
    stamp,
)
from fedbm.federation.deploy.flower import check_flower
from fedbm.federation.deploy.site_files import Node
from fedbm.version import __version__

SECONDS = 10.0  # for the server to answer
THERE = 415  # what a SuperLink says to a message without content: it is there, and it is a SuperLink
MAX_AHEAD_S, MAX_BEHIND_S = 5, 300  # of a node's clock; beyond this Flower refuses its signatures without a word
NO_LINK = (502, 503, 504)  # what the front says when no SuperLink answers it


def check_server_folder(folder: Path) -> list[str]:
    """Versions, key and certificate of the server's folder; what is worth saying about them."""
    lines = [versions()]
    check_private(folder / "server.key")
    check_signed(folder / "server.pem", folder / "ca.crt")
    for name in ("server.pem", "ca.crt"):
        lines += lasting(folder / name)
    return lines


def check_node_folder(folder: Path) -> list[str]:
    """Versions, key and authority of a node's folder; what is worth saying about them."""
    check_node_key(folder / "node.key", folder / "node.pub")
    return [versions(), *lasting(folder / "ca.crt")]


def versions() -> str:
    return f"fedbm {__version__}, flwr {check_flower()}"


def lasting(path: Path, now: datetime | None = None) -> list[str]:
    """When the certificate ends, with a warning in its last days."""
    now = now or datetime.now(UTC)
    end = check_certificate(path, now)
    words = f"{path.name} is valid until {stamp(end)}"
    return [f"warning: {words}, soon; plan its renewal" if end - now < timedelta(days=WARN_DAYS) else words]


def check_data(node: Node, data: str) -> str:
    """Read the node's images, and prepare them if they are not; what they are, in numbers that stay here."""
    from fedbm.data.cache import DamagedError, Prepared, open_prepared
    from fedbm.data.dataset import Dataset, load

    place = Path(data).expanduser()
    try:
        if (place / "manifest.json").is_file():
            found: Dataset | Prepared = open_prepared(place, verify=True)
        else:
            found = load(data, size=node.size, channels=node.channels, verify=True)
    except DamagedError as error:
        raise FedBMError(f"the prepared images in {place} are damaged ({error}); prepare them again") from error
    train = int((found.split == 0).sum())
    if train == 0:
        raise FedBMError(f"{data} has no training images")
    side, depth = found.images.shape[2:]
    return (
        f"images: {len(found.labels):,} of {len(found.classes)} classes, {train:,} of them for training, "
        f"{side} pixels, {'colour' if depth == 3 else 'grey'}"
    )


def split_address(address: str) -> tuple[str, int]:
    """'host:port' → (host, port); an IPv6 address stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise FedBMError(f'server = "{address}" in node.toml must be host:port, such as "fl.example.org:443"')
    return host.strip("[]"), int(port)


def check_server(node: Node, authority: Path) -> str:
    """That a SuperLink answers at the node's server address, over TLS, with a certificate of our authority."""
    host, port = split_address(node.server)
    where = f"{host}:{port}"
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    try:
        connection.connect()
        asked_at = time.time()
        connection.request("POST", "/v1/fleet/activate-node")
        response = connection.getresponse()
        answered_at = time.time()
    except ssl.SSLCertVerificationError as error:
        raise FedBMError(
            f"the server at {where} is not trusted: {error.verify_message.strip().rstrip('.')}; "
            "this folder's ca.crt must be the one its operator made"
        ) from error
    except ssl.SSLError as error:
        raise FedBMError(f"what answers at {where} speaks no TLS; ask the operator for the right port") from error
    except socket.gaierror as error:
        raise FedBMError(
            f"the server's name {host} is not known here; check node.toml and this machine's DNS"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise FedBMError(
            f"no server answers at {where} ({getattr(error, 'strerror', None) or error}); it may not be up yet, or a "
            "firewall keeps this machine from calling out"
        ) from error
    finally:
        connection.close()
    status = response.status
    if status in NO_LINK:
        raise FedBMError(f"the front at {where} answers, but its SuperLink does not; ask the operator to start it")
    if status != THERE:
        raise FedBMError(f"what answers at {where} is no SuperLink (it says {status}); check server in node.toml")
    if date := response.headers["Date"]:
        check_clock(date, asked_at, answered_at)
    return f"server {where}: reached, its certificate is trusted"


def check_clock(date: str, asked_at: float, answered_at: float) -> None:
    """Raise FedBMError if this machine's clock is too far from the server's for Flower to accept its signatures.

    *date* is the server's Date header, in whole seconds; the other two are this machine's time around the answer.
    """
    try:
        server = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return
    ahead, behind = asked_at - (server + 1), server - answered_at  # at least
    if ahead <= MAX_AHEAD_S and behind <= MAX_BEHIND_S:
        return
    gap = f"{ahead:.0f} s ahead of" if ahead > 0 else f"{behind:.0f} s behind"
    raise FedBMError(
        f"this machine's clock is {gap} the server's; Flower refuses a node that is more than {MAX_AHEAD_S} s ahead or "
        f"{MAX_BEHIND_S} s behind: set both clocks by NTP (timedatectl set-ntp true)"
    )
