"""Run the server, a node, or a whole federation on this machine until it is stopped.

However this process ends, everything that it started ends too; see supervisor.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from fedbm.errors import FedBMError
from fedbm.federation.deploy import flower
from fedbm.federation.deploy.certificates import check_node_key, check_server_key, describe_validity, write_private
from fedbm.federation.deploy.preflight import check_data, check_server, describe_policy, describe_versions
from fedbm.federation.deploy.registration import register
from fedbm.federation.deploy.run_control import end_active_runs
from fedbm.federation.deploy.settings_files import (
    NodeSettings,
    ServerSettings,
    clear_refusal,
    read_refusal,
    read_settings,
)
from fedbm.federation.deploy.supervisor import Child, check_free, supervise, wait_until_ready

Report = Callable[[str], None]

START_SECONDS = 60.0


@contextmanager
def run_server(folder: Path, report: Report) -> Iterator[list[Child]]:
    """Yield the SuperLink and the program that starts server apps, when the nodes are registered."""
    settings = read_settings(folder, ServerSettings)
    with supervise([folder]) as children:
        start_server(folder, settings, children, report)
        report(
            f"ready: nodes connect to {settings.host}:{settings.port}; "
            f"'fedbm federation run {folder} FILE.toml' starts a run"
        )
        yield children


@contextmanager
def run_node(folder: Path, data: str, report: Report) -> Iterator[list[Child]]:
    """Check a node, and yield its worker when the server has admitted it."""
    settings = read_settings(folder, NodeSettings)
    worker, lines = check_node(folder, settings, settings.server, data)
    for line in (*lines, check_server(settings, folder / "ca.crt")):
        report(line)
    with supervise([folder]) as children:
        start_nodes([worker], children)
        report(f"ready: the server accepts the key of {settings.name} (client {settings.client}); waiting for a run")
        yield children


@contextmanager
def run_all(folder: Path, report: Report) -> Iterator[list[Child]]:
    """Yield the server and all nodes of a federation on this machine when they are ready."""
    home = folder / "server"
    settings = read_settings(home, ServerSettings)
    sites = [folder / name for name in settings.names]
    workers = []
    for site, node in zip(sites, share_threads([read_settings(site, NodeSettings) for site in sites]), strict=True):
        worker, lines = check_node(site, node, f"127.0.0.1:{settings.link_port}")
        workers.append(worker)
        report(f"{node.name}: {lines[-1]}")
    with supervise([home, *sites]) as children:
        start_server(home, settings, children, report)
        start_nodes(workers, children)
        report(f"ready: {len(workers)} nodes are connected")
        yield children


def check_node(folder: Path, settings: NodeSettings, address: str, data: str = "") -> tuple[Child, list[str]]:
    """Check a node, and return its worker, which is not started yet, and lines that describe the node."""
    check_node_key(folder)
    lines = [describe_versions(), describe_validity(folder / "ca.crt"), describe_policy(settings)]
    images = settings.images(folder, data)
    return flower.worker(folder, settings, images, address), [*lines, check_data(settings, images)]


def share_threads(nodes: Sequence[NodeSettings]) -> list[NodeSettings]:
    """Divide the machine's threads among the nodes that do not set their own number."""
    each = max(1, torch.get_num_threads() // len(nodes))
    return [node if node.threads else replace(node, threads=each) for node in nodes]


def start_server(folder: Path, settings: ServerSettings, children: list[Child], report: Report) -> None:
    check_server_key(folder)
    check_free(settings.link_port)  # a second server of the same authority would change the nodes of the first one
    for line in (describe_versions(), *(describe_validity(folder / name) for name in ("server.pem", "ca.crt"))):
        report(line)
    write_private(folder / flower.SECRET, secrets.token_bytes(32))
    for child in (flower.superlink(folder, settings), flower.superexec(folder, settings)):
        child.start(children)
        wait_until_ready(child, START_SECONDS)
    register(folder, settings)
    end_active_runs(folder)  # their server app is gone


def start_nodes(workers: Sequence[Child], children: list[Child]) -> None:
    """Start all workers, and return when the server has admitted them."""
    for worker in workers:
        clear_refusal(worker.folder / "state")
        worker.start(children)
    for worker in workers:
        wait_until_ready(worker, START_SECONDS, flower.explain_exit)


def watch(children: Sequence[Child], report: Report) -> Iterator[None]:
    """Yield twice a second, and report refusals of nodes; raise FedBMError if a program dies."""
    refusals = {child.folder: "" for child in children if child.role == "worker"}
    while True:
        for child in children:
            if not child.alive:
                raise FedBMError(
                    f"{child.role} of {child.folder.name} has died; its log is {child.log}. If it shows no reason, "
                    "this machine's memory is too small (dmesg). Run the command again; a service restarts by itself."
                )
        for folder, before in refusals.items():
            if (why := read_refusal(folder / "state")) != before:
                refusals[folder] = why
                report(f"{folder.name}: " + (f"not admitted: {why}" if why else "the server admitted it"))
        yield
        time.sleep(0.5)
