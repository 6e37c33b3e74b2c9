"""`fedbm federation init`: keys, certificates, settings, services, the front and a runbook, for every role at once.

    DIR/federation.toml   DIR/authority/{ca.key,ca.crt}   DIR/server/…   DIR/<node>/… for each

Nothing is ever overwritten. What a hospital is handed is its own folder; it holds no secret but its own key.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError, did_you_mean
from fedbm.federation.deploy.certificates import (
    SERVER_DAYS,
    make_authority,
    make_node,
    make_server,
    read_certificate,
    stamp,
    write_public,
)
from fedbm.federation.deploy.site_files import Node, Server, Whole, check_host, check_names, read, to_text
from fedbm.utils.io import write_text
from fedbm.version import __version__

HERE = "127.0.0.1"
HOME = "/srv/fedbm"  # where the services expect folders and the package; the runbooks say so
BODY_MB = 16


def create(
    folder: Path,
    nodes: int | None = None,
    names: Sequence[str] = (),
    host: str = HERE,
    port: int | None = None,
    link_port: int = 8000,
    days: int = SERVER_DAYS,
) -> list[Path]:
    """Make a federation in *folder*, which must be new or empty; the folders of its roles, the server's first.

    Without *host*, nodes call the SuperLink on this machine directly; with it, the nginx front at *port* (443).
    Without *nodes*, there are as many as *names*, or 3.
    """
    nodes = nodes or len(names) or 3
    names = list(names) or [f"hospital-{number}" for number in range(1, nodes + 1)]
    if len(names) != nodes:
        raise FedBMError(f"{len(names)} names were given for {nodes} nodes; give as many")
    check_names(list(names))
    check_host(host)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedBMError(f"{folder} is there already and is not overwritten; choose another folder")
    own = host in (HERE, "localhost", "::1")
    server = Server(host, port or (link_port if own else 443), link_port, ",".join(names))
    authority, home = folder / "authority", folder / "server"
    make_authority(authority, folder.resolve().name)
    make_server(authority, home, list(dict.fromkeys([host, "localhost", "127.0.0.1", "::1"])), days)
    shutil.copyfile(authority / "ca.crt", home / "ca.crt")
    write_text(home / "server.toml", to_text(server))
    write_text(home / "run.toml", render("run.toml.j2", nodes=nodes))
    facts = facts_of(folder, server)
    at = {"place": f"{HOME}/server", "unit": "fedbm-server.service", "role": "server"}
    write_text(home / "nginx.conf", render("nginx.conf.j2", **facts, **at))
    describe(home, "FedBM server", facts | at)
    for client, name in enumerate(names):
        make_site(folder, server, client, name)
    write_text(folder / "federation.toml", to_text(Whole(folder.resolve().name, ",".join(names))))  # last: it is whole
    return [home, *(folder / name for name in names)]


def make_site(folder: Path, server: Server, client: int, name: str) -> None:
    """A node's folder, and its public key in the server's."""
    site = folder / name
    node = Node(client, name, address(server), server.link_port + 1 + client)
    make_node(site, name)
    shutil.copyfile(folder / "authority" / "ca.crt", site / "ca.crt")
    write_text(site / "node.toml", to_text(node))
    at = {"place": f"{HOME}/{name}", "unit": "fedbm-node.service", "role": "node"}
    describe(site, f"FedBM node {name}", {**facts_of(folder, server), **at, "node": node})
    publish(folder, name)


def publish(folder: Path, name: str) -> None:
    known = folder / "server" / "nodes" / f"{name}.pub"
    known.parent.mkdir(exist_ok=True)
    write_public(known, (folder / name / "node.pub").read_bytes())


def add(folder: Path, name: str) -> Path:
    """One more node, with the next client number; its folder."""
    whole: Whole = read(folder, Whole)
    server: Server = read(folder / "server", Server)
    names = [*whole.nodes.split(","), name]
    check_names(names)
    if (folder / name).exists():
        raise FedBMError(f"{folder / name} is there already and is not overwritten; choose another name")
    client = len(names) - 1
    make_site(folder, server, client, name)
    places = [server.places.get(place, "") for place in range(client)]  # those of nodes that left stay empty
    write_text(folder / "server" / "server.toml", to_text(replace(server, nodes=",".join([*places, name]))))
    write_text(folder / "federation.toml", to_text(replace(whole, nodes=",".join(names))))
    return folder / name


def rekey(folder: Path, name: str) -> Path:
    """A new key pair for one node, known to the server; the old one is refused from the server's next start."""
    if name not in (names := read(folder, Whole).nodes.split(",")):
        raise FedBMError(f'there is no node "{name}" in {folder}{did_you_mean(name, names)}')
    make_node(folder / name, name)
    publish(folder, name)
    return folder / name


def renew(folder: Path, days: int = SERVER_DAYS) -> str:
    """A new server key and certificate from DIR/authority, for the same names; when it ends."""
    server = read(folder / "server", Server)
    hosts = list(dict.fromkeys([server.host, "localhost", "127.0.0.1", "::1"]))
    make_server(folder / "authority", folder / "server", hosts, days)
    return stamp(read_certificate(folder / "server" / "server.pem").not_valid_after_utc)


def facts_of(folder: Path, server: Server) -> dict[str, Any]:
    """What services, front and runbooks speak of."""
    ends = {"authority_end": folder / "authority" / "ca.crt", "server_end": folder / "server" / "server.pem"}
    return {
        "name": folder.resolve().name,
        "server": server,
        "version": __version__,
        "body_mb": BODY_MB,
        **{name: stamp(read_certificate(path).not_valid_after_utc) for name, path in ends.items()},
    }


def address(server: Server) -> str:
    return f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"


def describe(folder: Path, what: str, facts: dict[str, Any]) -> None:
    """A role's service and runbook."""
    program = f"{HOME}/venv/bin/fedbm"
    write_text(folder / facts["unit"], render("unit.service.j2", what=what, program=program, **facts))
    write_text(folder / "RUNBOOK.md", render(f"runbook-{facts['role']}.md.j2", **facts))


def render(template: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("fedbm.federation"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # plain text; the page of the status has its own
    )
    return made.get_template(template).render(values)
