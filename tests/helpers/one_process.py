"""The real ServerApp and the real nodes in one process: a grid that hands messages over and can misbehave."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedbm.data.dataset import Dataset
from fedbm.engine.run_folder import RunFolder
from fedbm.federation.audit import verify
from fedbm.federation.deploy.registration import Registered
from fedbm.federation.deploy.settings_files import OPEN_POLICY, NodeSettings, ServerSettings, to_text
from fedbm.federation.node.node_data import write_share
from fedbm.federation.node.worker import reply as reply_of_node
from fedbm.federation.protocol.packing import digest
from fedbm.federation.server import server_app as server_program
from fedbm.federation.server.server_app import app as server_app
from fedbm.runs import runner as simulation
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.run_config import make_config, to_sections, to_toml
from fedbm.runs.run_file_writer import finish_simulation
from fedbm.utils.io import write_text

CLASSES = ("cyst", "normal", "polyp")  # of the folder `scans`, for a server that does not look into it

REPLY_UNAVAILABLE = 3  # Flower's error code for a request that has expired

Spoil = Callable[[Message, Message], Message | None]  # request, reply → the reply as it arrives, or None: it never does


@dataclass
class Node:
    config: dict[str, Any]
    connected: bool = True
    spoil: Spoil = lambda request, reply: reply
    delay: Callable[[Message], float] = lambda request: 0.0  # seconds until the reply to a request arrives
    requests: list[Message] = field(default_factory=list)
    kept: dict[Any, Any] = field(default_factory=dict)  # what its process keeps in memory


class FakeGrid(Grid):
    """Every request is answered at once by the node's worker, after a trip through Flower's own serialisation.

    As at a SuperLink, a request and its reply are gone when the request's time to live has passed, and a reply that
    arrives later is not stored.
    """

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.replies: dict[str, tuple[float, Message]] = {}  # request id → when the reply arrives, and the reply
        self.pushed: dict[str, tuple[float, Message]] = {}  # request id → when it is gone, and the request
        self._numbers = itertools.count(1)

    def get_node_ids(self) -> Iterable[int]:
        return [number for number, node in self.nodes.items() if node.connected]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = []
        for message in messages:
            name = f"message {next(self._numbers)}"
            request = travelled(message)
            request.metadata.__dict__["_message_id"] = name
            node = self.nodes[message.metadata.dst_node_id]
            found.append(name)
            self.pushed[name] = time.monotonic() + message.metadata.ttl, request
            node.requests.append(request)
            if not node.connected:
                continue
            reply = node.spoil(request, reply_of_node(request, node.config, node.kept))
            if reply is not None:
                self.replies[name] = time.monotonic() + node.delay(request), travelled(reply)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now, found = time.monotonic(), []
        for name in message_ids:
            gone_at, request = self.pushed[name]
            if now >= gone_at:
                found.append(Message(Error(REPLY_UNAVAILABLE, "expired"), reply_to=request))
            elif name in self.replies and now >= self.replies[name][0]:
                found.append(self.replies.pop(name)[1])
        return found

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def travelled(message: Message) -> Message:
    """The message as the other side gets it: deflated to bytes and inflated again."""
    contents = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    return arrived


@contextmanager
def engine_process() -> Iterator[None]:
    """Flower makes messages only in processes it has started, which it knows by these."""
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, 1)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


@dataclass
class Deployed:
    """A run's plan in one process, and the same run over nodes that hold its partition's shares."""

    plan: Plan
    folder: Path
    grid: FakeGrid
    options: dict[str, Any]
    registered: list[Registered]
    server: ServerSettings = field(default_factory=ServerSettings)

    @property
    def config(self) -> Path:
        path = self.folder / "run.toml"
        lines = [f"{key} = {value!r}".replace("'", '"') for key, value in self.options.items()]
        path.write_text(
            "\n".join([to_toml(self.plan.config.with_values("engine", out="runs")), "[federation]", *lines]),
            encoding="utf-8",
        )
        return path

    @property
    def state(self) -> Path:
        return self.folder / "server" / "state"

    def serve(self) -> None:
        write_text(self.folder / "server" / "server.toml", to_text(self.server))
        run_config = {"config": str(self.config), "folder": str(self.folder / "server")}
        registry = {int(node.node): node for node in self.registered}
        with engine_process(), patch.object(server_program, "find_registered", lambda *_: registry):
            server_app(self.grid, Context(1, 1, {}, RecordDict(), run_config))


def deploy(
    folder: Path, settings: Mapping[str, Any], options: Mapping[str, Any] | None = None, sizes: Sequence[int] = ()
) -> Deployed:
    """Deal a data set to nodes as the plan deals it to clients, or its training images at random by *sizes*.

    Node ids are arbitrary and in no order.
    """
    config = make_config(to_sections({**settings, "out": str(folder / "runs")}))
    plan = make_plan(replace(config, concepts={name: name for name in CLASSES}))
    if sizes:
        shuffled = np.random.default_rng(0).permutation(plan.dataset.indices("train"))
        shares = np.split(shuffled, np.cumsum(sizes)[:-1])
        plan = replace(plan, partition=replace(plan.partition, clients=tuple(shares)))
    nodes = {}
    for client, samples in enumerate(plan.partition.clients):
        share = folder / f"share-{client}"
        home = folder / f"node-{client}"
        write_text(home / "node.toml", to_text(NodeSettings(client, f"site {client}", policy=OPEN_POLICY)))
        write_share(share, plan.dataset, with_scores(plan.dataset, samples, client, len(plan.partition.clients)))
        nodes[9000 - 7 * client] = Node(
            {"client": client, "name": f"site {client}", "data": str(share), "folder": str(home), "state": str(home),
             "threads": 1, "device": "cpu"}
        )  # fmt: skip
    given = {"nodes": len(nodes), "deadline_s": 0.2, "min_updates": 1, "evaluate": "server", **(options or {})}
    registered = [
        Registered(node.config["client"], node.config["name"], str(number), f"SHA256:{node.config['client']}")
        for number, node in nodes.items()
    ]
    return Deployed(plan, folder, FakeGrid(nodes), given, registered)


def with_scores(dataset: Dataset, training: Any, client: int, clients: int) -> Any:
    """A client's training samples, and every so-manyeth of val and test."""
    scored = np.concatenate([dataset.indices("val")[client::clients], dataset.indices("test")[client::clients]])
    return np.sort(np.concatenate([training, scored]))


def events_of(state: Path, event: str) -> list[dict[str, Any]]:
    """The lines of an audit that tell of one kind of event."""
    return [line for line in verify(state / "audit.jsonl").lines if line["event"] == event]


def records_of(run: Deployed | Plan) -> list[dict[str, Any]]:
    [folder] = (run.state / "runs").iterdir() if isinstance(run, Deployed) else [simulation.run_path(run)]
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def digests_in_process(plan: Plan) -> list[str]:
    """The digest of the server's state after every round of the plan, played in this process."""
    folder = RunFolder(simulation.run_path(plan))
    folder.path.mkdir(parents=True)
    federation = simulation.prepare_round_loop(plan, folder, torch.device("cpu"))
    found = [digest(federation.server) for event in federation.rounds() if event.record is not None]
    finish_simulation(plan, federation)
    return found
