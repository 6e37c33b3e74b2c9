"""Roles at work: the server, a node, or all of them on this machine; each until it is told to stop.

Programs that die are started again. However this process ends (Ctrl-C, SIGTERM, an error, kill -9), all that it started
ends too: here in the ordinary case, by the watchdogs otherwise.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch

from fedbm.errors import FedBMError
from fedbm.federation.deploy import flower
from fedbm.federation.deploy.preflight import check_data, check_node_folder, check_server, check_server_folder
from fedbm.federation.deploy.processes import (
    Child,
    born,
    check_free,
    dismiss,
    guard,
    pid_file,
    running,
    wait_until_ready,
)
from fedbm.federation.deploy.registration import register
from fedbm.federation.deploy.site_files import Node, Server, Whole, read
from fedbm.federation.node.refusal_file import clear_refusal, read_refusal
from fedbm.utils.io import write_json

Say = Callable[[str], None]
Tick = Callable[[], bool]  # called twice a second; False ends the work

START_SECONDS = 60.0
PATIENCE = 90.0  # seconds: a server that lost a node takes its key again after about sixty
AGAIN = 3.0  # seconds between its attempts


@contextmanager
def supervising(folders: Sequence[Path]) -> Iterator[list[Child]]:
    """A list to put children in; whatever happens, they and all they started are ended."""
    for folder in folders:
        if busy := running(folder):
            raise FedBMError(
                f"{folder} is in use: its {next(iter(busy))} runs; 'fedbm federation stop {folder}' ends it"
            )

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # as by nohup
    for number in before:
        signal.signal(number, interrupt)
    guards = guard(folders)
    children: list[Child] = []
    try:
        for folder in folders:
            write_json(pid_file(folder, "supervisor"), {"pid": os.getpid(), "born": born(os.getpid())})
        yield children
    finally:
        for number in before:  # a second Ctrl-C must not leave half of them behind
            signal.signal(number, signal.SIG_IGN)
        nodes, server = [c for c in children if c.alone], [c for c in children if not c.alone]
        for group in (nodes, server):  # nodes take their leave while the SuperLink is still there
            for child in group:
                child.ask_to_end()
            for child in group:
                child.end()
        dismiss(guards)
        for folder in folders:
            pid_file(folder, "supervisor").unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def work(children: Sequence[Child], say: Say, tick: Tick) -> None:
    """Keep the children running until *tick* has had enough; say what happens to them."""
    dead: set[str] = set()
    refusals: dict[Path, str] = {child.folder: "" for child in children if child.role == "supernode"}
    while tick():
        for folder, before in refusals.items():
            if (why := read_refusal(folder / "state")) != before:
                refusals[folder] = why
                say(f"{folder.name}: " + (f"the server refused this node: {why}" if why else "the server took it in"))
        for child in children:
            who = f"{child.folder.name}: {child.role}"
            if not child.alive and who not in dead:
                dead.add(who)
                say(f"{who} has died; it is started again")
            elif who in dead and child.alive and child.ready(child):
                dead.discard(who)
                say(f"{who} is back")
                child.wait = 1.0
            child.keep()
        time.sleep(0.5)


def serve(folder: Path, say: Say, tick: Tick) -> None:
    """The server's SuperLink, with its nodes registered."""
    settings: Server = read(folder, Server)
    with supervising([folder]) as children:
        begin_server(folder, settings, children, say)
        say(
            f"ready: nodes call {settings.host}:{settings.port}; 'fedbm federation run {folder} FILE.toml' starts a run"
        )
        work(children, say, tick)


def attend(folder: Path, data: str, say: Say, tick: Tick) -> None:
    """A node, checked and then connected."""
    settings: Node = read(folder, Node)
    for line in check_node_folder(folder):
        say(line)
    images = settings.images(folder, data)
    say(check_data(settings, images))
    say(check_server(settings, folder / "ca.crt"))
    with supervising([folder]) as children:
        begin_node(folder, settings, images, settings.server, children)
        admitted(children[0], say)
        say(f"ready: the server accepts the key of {settings.name} (client {settings.client}); it waits for a run")
        work(children, say, tick)


@contextmanager
def everything(folder: Path, say: Say) -> Iterator[list[Child]]:
    """The server and all nodes of a federation on this machine, ready."""
    whole: Whole = read(folder, Whole)
    home, sites = folder / "server", whole.folders(folder)
    settings: Server = read(home, Server)
    nodes = sharing([read(site, Node) for site in sites])
    images = []
    for site, node in zip(sites, nodes, strict=True):
        check_node_folder(site)
        images.append(node.images(site, otherwise=f"'fedbm federation deal {folder}' deals the run's to all nodes"))
        say(f"{node.name}: {check_data(node, images[-1])}")
    with supervising([home, *sites]) as children:
        begin_server(home, settings, children, say)
        for site, node, held in zip(sites, nodes, images, strict=True):
            begin_node(site, node, held, f"127.0.0.1:{settings.link_port}", children)
        for child in children[-len(nodes) :]:
            admitted(child, say)
        say(f"ready: {len(nodes)} nodes are connected")
        yield children


def sharing(nodes: Sequence[Node]) -> list[Node]:
    """Nodes of one machine: those that leave their threads open share its cores, which else each would take whole."""
    each = max(1, torch.get_num_threads() // len(nodes))
    return [node if node.threads else replace(node, threads=each) for node in nodes]


def begin_server(folder: Path, settings: Server, children: list[Child], say: Say) -> None:
    for line in check_server_folder(folder):
        say(line)
    check_free(settings.link_port, "the SuperLink")
    link = flower.superlink(folder, settings)
    children.append(link)
    link.start()
    wait_until_ready(link, START_SECONDS, lambda said: None)
    children.append(flower.superexec(folder, settings))
    children[-1].start()
    flower.connect(folder, settings)
    register(folder, settings)
    for run in flower.runs(folder):
        if run["status"] not in flower.OVER:  # its server app went with the machine, or with a killed supervisor
            flower.end_run(folder, str(run["run-id"]))


def begin_node(folder: Path, settings: Node, images: str, address: str, children: list[Child]) -> None:
    check_free(settings.runtime_port, f"the node {settings.name}")
    clear_refusal(folder / "state")
    node = flower.supernode(folder, settings, images, address)
    children.append(node)
    node.start()


def admitted(node: Child, say: Say) -> None:
    """Return when the server has let the node in; while it still counts a lost twin of it as there, try again."""
    deadline, told = time.monotonic() + PATIENCE, False
    while True:
        try:
            wait_until_ready(node, START_SECONDS, flower.refusal)
            return
        except FedBMError as error:
            if "refused by the server" not in str(error) or time.monotonic() > deadline:
                raise
            if not told:
                say(f"{node.folder.name} is not let in; trying for {PATIENCE:.0f} s, in case it was here just before")
            told = True
            time.sleep(AGAIN)
            node.start()
