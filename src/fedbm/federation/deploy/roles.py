"""Run the server, a node, or a whole federation on this machine until it is stopped.

However this process ends, everything that it started ends too; see supervisor.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from fedbm.errors import FedBMError
from fedbm.federation.deploy import flower
from fedbm.federation.deploy.preflight import check_data, check_node_folder, check_server, check_server_folder
from fedbm.federation.deploy.registration import register
from fedbm.federation.deploy.settings_files import (
    NodeSettings,
    ServerSettings,
    clear_refusal,
    read_refusal,
    read_settings,
)
from fedbm.federation.deploy.supervisor import Child, check_free, supervise, wait_until_ready

Report = Callable[[str], None]
Tick = Callable[[], bool]  # called twice a second; False ends the work

START_SECONDS = 60.0


def run_server(folder: Path, report: Report, tick: Tick) -> None:
    """Run the SuperLink and register its nodes."""
    settings = read_settings(folder, ServerSettings)
    with supervise([folder]) as children:
        start_server(folder, settings, children, report)
        report(
            f"ready: nodes connect to {settings.host}:{settings.port}; "
            f"'fedbm federation run {folder} FILE.toml' starts a run"
        )
        watch(children, report, tick)


def run_node(folder: Path, data: str, report: Report, tick: Tick) -> None:
    """Check a node and connect it."""
    settings = read_settings(folder, NodeSettings)
    for line in check_node_folder(folder):
        report(line)
    images = settings.images(folder, data)
    report(check_data(settings, images))
    report(check_server(settings, folder / "ca.crt"))
    with supervise([folder]) as children:
        start_node(folder, settings, images, settings.server, children)
        wait_for_admission(children)
        report(f"ready: the server accepts the key of {settings.name} (client {settings.client}); waiting for a run")
        watch(children, report, tick)


@contextmanager
def run_all(folder: Path, report: Report) -> Iterator[list[Child]]:
    """Yield the server and all nodes of a federation on this machine when they are ready."""
    home = folder / "server"
    settings = read_settings(home, ServerSettings)
    sites = [folder / name for name in settings.names]
    nodes = share_threads([read_settings(site, NodeSettings) for site in sites])
    images = []
    for site, node in zip(sites, nodes, strict=True):
        check_node_folder(site)
        images.append(node.images(site))
        report(f"{node.name}: {check_data(node, images[-1])}")
    with supervise([home, *sites]) as children:
        start_server(home, settings, children, report)
        for site, node, data in zip(sites, nodes, images, strict=True):
            start_node(site, node, data, f"127.0.0.1:{settings.link_port}", children)
        wait_for_admission(children)
        report(f"ready: {len(nodes)} nodes are connected")
        yield children


def share_threads(nodes: Sequence[NodeSettings]) -> list[NodeSettings]:
    """Divide the machine's threads among the nodes that do not set their own number."""
    each = max(1, torch.get_num_threads() // len(nodes))
    return [node if node.threads else replace(node, threads=each) for node in nodes]


def start_server(folder: Path, settings: ServerSettings, children: list[Child], report: Report) -> None:
    for line in check_server_folder(folder):
        report(line)
    check_free(settings.link_port, "the SuperLink")
    flower.make_secret(folder)
    for child in (flower.superlink(folder, settings), flower.superexec(folder, settings)):
        children.append(child)
        child.start()
        wait_until_ready(child, START_SECONDS)
    flower.write_connection(folder, settings)
    register(folder, settings)
    for run in flower.active_runs(folder):  # its server app is gone
        with suppress(FedBMError):
            flower.end_run(folder, run)


def start_node(folder: Path, settings: NodeSettings, images: str, address: str, children: list[Child]) -> None:
    check_free(settings.runtime_port, f"the node {settings.name}")
    clear_refusal(folder / "state")
    flower.make_secret(folder)
    for child in (flower.supernode(folder, settings, images, address), flower.worker(folder, settings)):
        children.append(child)
        child.start()


def wait_for_admission(children: Sequence[Child]) -> None:
    """Return when the server has admitted the nodes of *children*, and their workers are loaded."""
    for child in children:
        if child.role in ("supernode", "worker"):
            wait_until_ready(child, START_SECONDS, flower.explain_exit)


def watch(children: Sequence[Child], report: Report, tick: Tick) -> None:
    """Report refusals until *tick* returns False; raise FedBMError if a program dies."""
    refusals = {child.folder: "" for child in children if child.role == "supernode"}
    while True:
        for child in children:
            if not child.alive:
                memory = " If it shows no reason, this machine's memory is too small for the run (see dmesg)."
                raise FedBMError(
                    f"{child.role} of {child.folder.name} has died; its log is {child.log}."
                    f"{memory if child.role == 'worker' else ''} "
                    "Run the same command again; as a service it restarts by itself."
                )
        for folder, before in refusals.items():
            if (why := read_refusal(folder / "state")) != before:
                refusals[folder] = why
                report(f"{folder.name}: " + (f"not admitted: {why}" if why else "the server admitted it"))
        if not tick():
            return
        time.sleep(0.5)
