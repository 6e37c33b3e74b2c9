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
    HERE,
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

HOME = "/srv/fedbm"  # where the services and runbooks expect the folders and the package


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
    check_names(names)
    local = host in (HERE, "localhost", "::1")
    link_port = link_port or (port if local and port else 8000)
    port = port or (link_port if local else 443)
    if port == link_port and not local:
        raise FedBMError(f"nginx and the SuperLink cannot both use port {port}; choose another --port or --link-port")
    if not is_host(host):
        raise FedBMError(f'the host must be a DNS name or an IP address, without a port, not "{host}"')
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedBMError(f"{folder} exists already and is not overwritten; choose another folder")
    home = folder / "server"
    server = ServerSettings(host, port, link_port, ",".join(names), rehearsal=local or rehearsal)
    certificates.make_authority(folder / "authority", folder.resolve().name)
    write_text(home / "server.toml", to_text(server))
    renew(folder, days)
    shutil.copyfile(folder / "authority" / "ca.crt", home / "ca.crt")
    write_files(folder, "server", "server", server=server)
    return [home, *(make_site(folder, server, client, name) for client, name in enumerate(names))]


def make_site(folder: Path, server: ServerSettings, client: int, name: str) -> Path:
    """Make the folder of a node of server.toml, copy its public key to the server's folder, and return its folder."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    policy = OPEN_POLICY if server.rehearsal else Policy()
    node = NodeSettings(client, name, f"{host}:{server.port}", policy=policy)
    write_text(folder / name / "node.toml", to_text(node))
    shutil.copyfile(folder / "authority" / "ca.crt", folder / name / "ca.crt")
    write_files(folder, "node", name, server=server, node=node)
    return rekey(folder, name)


def add(folder: Path, name: str) -> Path:
    """Make one more node with the next client number, and return its folder."""
    server = read_settings(folder / "server", ServerSettings)
    check_names([*server.names, name])
    if (folder / name).exists():
        raise FedBMError(f"{folder / name} exists already and is not overwritten; choose another name")
    certificates.read_certificate(folder / "authority" / "ca.crt")  # before anything is changed
    client = len(server.nodes.split(","))  # the places of former nodes stay empty
    server = replace(server, nodes=f"{server.nodes},{name}")
    write_text(folder / "server" / "server.toml", to_text(server))
    return make_site(folder, server, client, name)


def rekey(folder: Path, name: str) -> Path:
    """Give a node a new key pair and return its folder; the server refuses the old key from its next start."""
    if name not in read_settings(folder / "server", ServerSettings).names:
        raise FedBMError(f'there is no node "{name}" in {folder / "server" / "server.toml"}')
    certificates.make_node(folder / name, name)
    write_text(folder / "server" / "nodes" / f"{name}.pub", (folder / name / "node.pub").read_text(encoding="utf-8"))
    return folder / name


def renew(folder: Path, days: int = certificates.SERVER_DAYS) -> str:
    """Give the server a new key and certificate for the same names, and return when the certificate ends."""
    host = read_settings(folder / "server", ServerSettings).host
    hosts = list(dict.fromkeys([host, "localhost", HERE, "::1"]))
    certificates.make_server(folder / "authority", folder / "server", hosts, days)
    return certificates.format_end(folder / "server" / "server.pem")


def write_files(folder: Path, role: str, name: str, **settings: Any) -> None:
    """Write a role's systemd unit and runbook, and the server's run.toml and nginx.conf, from their templates."""
    unit = f"fedbm-{role}.service"
    values = {
        **settings,
        "name": folder.resolve().name,
        "version": __version__,
        "role": role,
        "place": f"{HOME}/{name}",
        "unit": unit,
        "what": f"FedBM {role} {name}",
        "program": f"{HOME}/venv/bin/fedbm",
        "authority_end": certificates.format_end(folder / "authority" / "ca.crt"),
        "server_end": certificates.format_end(folder / "server" / "server.pem"),
    }
    templates = {unit: "unit.service.j2", "RUNBOOK.md": f"runbook-{role}.md.j2"}
    if role == "server":
        templates |= {"run.toml": "run.toml.j2", "nginx.conf": "nginx.conf.j2"}
    for file, template in templates.items():
        write_text(folder / name / file, render(template, **values))


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
