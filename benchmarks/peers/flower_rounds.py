"""The same rounds in Flower's simulation (`pip install flwr[simulation]`): up to five actors share the GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from work import Counts, Measured, Settings, counting, share_settings, shared_work

ACTORS = 5
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for one epoch."""
    work, counts = shared_work(), Counts()
    model = work.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    settings = work.settings
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    own = work.clients[int(message.content["config"]["client"])]
    with counting(counts):
        for indices in own[torch.randperm(len(own), device=own.device)].split(settings.batch):
            images, labels = work.batch(indices)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(own), "steps": counts.steps, "trained": counts.trained})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class SameClients(FedAvg):
    """FedAvg with given clients: each round asks as many nodes as it has clients, and says which client each is."""

    def __init__(self, selected: list[list[int]]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.selected, self.counts = selected, Counts()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        chosen = self.selected[server_round - 1]
        while len(nodes := sorted(grid.get_node_ids())) < len(chosen):
            time.sleep(0.1)
        for client, node in zip(chosen, nodes, strict=False):
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
            yield Message(content=content, message_type="train", dst_node_id=node)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        found = [reply.content["metrics"] for reply in replies if not reply.has_error()]
        self.counts.clients = len(found)
        self.counts.steps = sum(int(metrics["steps"]) for metrics in found)
        self.counts.trained = sum(int(metrics["trained"]) for metrics in found)
        return super().aggregate_train(server_round, replies)


def measure(settings: Settings, warm_up: int) -> Measured:
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    share_settings(settings)
    work = shared_work()
    measured = Measured(f"Flower simulation, {ACTORS} actors at most")
    strategy, model = SameClients(work.selected), work.model()
    clock = [0.0]

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        counts = Counts()
        with counting(counts):
            model.load_state_dict(arrays.to_torch_state_dict())
            accuracy = work.evaluate(model)
        now = time.perf_counter()
        if server_round > warm_up:
            strategy.counts.evaluated = counts.evaluated
            measured.counts.append(Counts(**vars(strategy.counts)))
            measured.seconds.append(now - clock[0])
        clock[0] = now
        return MetricRecord({"accuracy": accuracy})

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(model.state_dict())
        strategy.start(grid, arrays, num_rounds=settings.rounds, evaluate_fn=evaluate)

    gpus = 1 / ACTORS if work.device.type == "cuda" else 0.0
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": gpus}}
    run_simulation(server_app, client_app, num_supernodes=settings.clients, backend_config=resources)
    return measured
