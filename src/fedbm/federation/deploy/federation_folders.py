"""Make the folders of a federation: keys, certificates, settings, services, nginx.conf and runbooks.

    DIR/authority/{ca.key,ca.crt}   DIR/server/…   DIR/<node>/… for each node

Existing folders are never overwritten. A node's folder contains no secret but its own key.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.federation.deploy import certificates
from fedbm.federation.deploy.settings_files import (
    OPEN_POLICY,
    NodeSettings,
    Policy,
    ServerSettings,
    check_names,
    is_host,
    read_settings,
    to_text,
)
from fedbm.utils.io import write_text
from fedbm.version import __version__

HERE = "127.0.0.1"
HOME = "/srv/fedbm"  # where the services and runbooks expect the folders and the package
MAX_BODY_MB = 16


def create(
    folder: Path,
    nodes: int | None = None,
    names: Sequence[str] = (),
    host: str = HERE,
    port: int | None = None,
    link_port: int | None = None,
    days: int = certificates.SERVER_DAYS,
    rehearsal: bool = False,
) -> list[Path]:
    """Make a federation in *folder*, which must be new or empty, and return the folders of server and nodes.

    By default there are as many nodes as *names*, or 3. Without *host*, nodes connect to the SuperLink on this machine,
    at *link_port* or *port*, 8000 by default; otherwise to the nginx proxy at *port*, 443 by default. The nodes' rules
    are strict, unless they connect to this machine or it is a *rehearsal*.
    """
    nodes = nodes or len(names) or 3
    names = list(names) or [f"hospital-{number}" for number in range(1, nodes + 1)]
    if len(names) != nodes:
        raise FedBMError(f"{len(names)} names were given for {nodes} nodes; give one name for each node")
    check_names(list(names))
    local = is_here(host)
    link_port = link_port or (port if local and port else 8000)
    port = port or (link_port if local else 443)
    if port == link_port and not local:
        raise FedBMError(f"nginx and the SuperLink cannot both use port {port}; choose another --port or --link-port")
    check_ports(link_port, nodes)
    if not is_host(host):
        raise FedBMError(
            f'the host must be a DNS name, such as fl.example.org, or an IP address, not "{host}"; '
            "set a port with --port"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedBMError(f"{folder} exists already and is not overwritten; choose another folder")
    server = ServerSettings(host, port, link_port, ",".join(names), rehearsal=local or rehearsal)
    home = folder / "server"
    certificates.make_authority(folder / "authority", folder.resolve().name)
    make_server_certificate(folder, host, days)
    shutil.copyfile(folder / "authority" / "ca.crt", home / "ca.crt")
    write_text(home / "run.toml", render("run.toml.j2", nodes=nodes))
    values = template_values(folder, server, "server", "server")
    write_text(home / "nginx.conf", render("nginx.conf.j2", **values))
    write_service(home, "FedBM server", values)
    for client, name in enumerate(names):
        make_site(folder, server, client, name)
    write_text(home / "server.toml", to_text(server))  # last, so that a folder with this file is complete
    return [home, *(folder / name for name in names)]


def check_ports(link_port: int, nodes: int) -> None:
    """Raise FedBMError if there are not enough ports after the SuperLink's: each node uses one."""
    if link_port + nodes > 65535:
        raise FedBMError(f"link_port is {link_port}, but must be at most {65535 - nodes} for {nodes} nodes")


def is_here(host: str) -> bool:
    return host in (HERE, "localhost", "::1")


def make_server_certificate(folder: Path, host: str, days: int) -> None:
    hosts = list(dict.fromkeys([host, "localhost", "127.0.0.1", "::1"]))
    certificates.make_server(folder / "authority", folder / "server", hosts, days)


def make_site(folder: Path, server: ServerSettings, client: int, name: str) -> None:
    """Make a node's folder, and copy its public key to the server's folder."""
    site = folder / name
    node = NodeSettings(client, name, format_address(server), server.link_port + 1 + client)
    certificates.make_node(site, name)
    shutil.copyfile(folder / "authority" / "ca.crt", site / "ca.crt")
    write_text(site / "node.toml", to_text(node, OPEN_POLICY if server.rehearsal else Policy()))
    write_service(site, f"FedBM node {name}", {**template_values(folder, server, "node", name), "node": node})
    publish_key(folder, name)


def publish_key(folder: Path, name: str) -> None:
    write_text(folder / "server" / "nodes" / f"{name}.pub", (folder / name / "node.pub").read_text(encoding="utf-8"))


def add(folder: Path, name: str) -> Path:
    """Make one more node with the next client number, and return its folder."""
    server = read_settings(folder / "server", ServerSettings)
    check_names([*server.names, name])
    if (folder / name).exists():
        raise FedBMError(f"{folder / name} exists already and is not overwritten; choose another name")
    client = len(server.nodes.split(","))  # the places of former nodes stay empty
    check_ports(server.link_port, client + 1)
    make_site(folder, server, client, name)
    write_text(folder / "server" / "server.toml", to_text(replace(server, nodes=f"{server.nodes},{name}")))
    return folder / name


def rekey(folder: Path, name: str) -> Path:
    """Give a node a new key pair and return its folder; the server refuses the old key from its next start."""
    if name not in read_settings(folder / "server", ServerSettings).names:
        raise FedBMError(f'there is no node "{name}" in {folder / "server" / "server.toml"}')
    certificates.make_node(folder / name, name)
    publish_key(folder, name)
    return folder / name


def renew(folder: Path, days: int = certificates.SERVER_DAYS) -> str:
    """Give the server a new key and certificate for the same names, and return when the certificate ends."""
    make_server_certificate(folder, read_settings(folder / "server", ServerSettings).host, days)
    return format_end(folder / "server" / "server.pem")


def template_values(folder: Path, server: ServerSettings, role: str, name: str) -> dict[str, Any]:
    """Return the values that the templates of a role use."""
    return {
        "name": folder.resolve().name,
        "server": server,
        "version": __version__,
        "body_mb": MAX_BODY_MB,
        "role": role,
        "place": f"{HOME}/{name}",
        "unit": f"fedbm-{role}.service",
        "program": f"{HOME}/venv/bin/fedbm",
        "authority_end": format_end(folder / "authority" / "ca.crt"),
        "server_end": format_end(folder / "server" / "server.pem"),
    }


def format_end(certificate: Path) -> str:
    return certificates.format_time(certificates.read_certificate(certificate).not_valid_after_utc)


def format_address(server: ServerSettings) -> str:
    return f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"


def write_service(folder: Path, title: str, values: dict[str, Any]) -> None:
    """Write a role's systemd unit and runbook."""
    write_text(folder / values["unit"], render("unit.service.j2", what=title, **values))
    write_text(folder / "RUNBOOK.md", render(f"runbook-{values['role']}.md.j2", **values))


def render(template: str, escape: bool = False, **values: Any) -> str:
    """Render a template of this package; *escape* values for HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedbm.federation"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=escape,
    )
    return environment.get_template(template).render(values)
