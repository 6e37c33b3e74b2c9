"""What a node keeps in memory between the messages of a run: images, pieces, task, model and captured steps.

A worker answers many messages in one process. It keeps the latest run only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from fedbm.config.options import EngineOptions
from fedbm.engine.clients.backends import uses_cuda_graphs
from fedbm.engine.clients.cuda_graphs import CapturedClient
from fedbm.engine.clients.graph_capture import CannotCapture
from fedbm.engine.local_training import Samples, train_client
from fedbm.federation.node.node_data import SiteData
from fedbm.federation.protocol.messages import Refusal, Terms, is_safe_name
from fedbm.federation.protocol.packing import Packed, unpack
from fedbm.methods.base import Facts, State, Task, Upload


@dataclass(frozen=True)
class Built:
    """A task, its model, the images that the model reads, and this client's captured training, if it is captured."""

    task: Task
    model: nn.Module
    samples: Mapping[str, Samples]  # by split
    captured: CapturedClient | None


@dataclass
class LoadedRun:
    """One run at a node. All its messages share one model, as all clients of a simulation do."""

    terms: Terms
    data: SiteData
    facts: Facts
    device: torch.device
    digests: dict[str, str] = field(default_factory=dict, init=False)  # of the pieces that the node has
    pieces: dict[str, State] = field(default_factory=dict, init=False)
    built: Built | None = field(default=None, init=False)

    def receive(self, parts: Sequence[Mapping[str, Any]], sent: Mapping[str, Packed]) -> State:
        """Keep the pieces that a request names and no others, and return what the method receives.

        Raise Refusal if the request neither contains one of them, nor an earlier request did.
        """
        digests = {str(item["name"]): str(item["digest"]) for item in parts}
        for name, digest in digests.items():
            if not is_safe_name(name):  # the audit contains it
                raise Refusal("terms")
            if name in sent:
                state = unpack(sent[name])
                if sent[name].digest != digest:
                    raise Refusal("terms")
                self.pieces[name] = {key: value.to(self.device) for key, value in state.items()}
            elif self.digests.get(name) != digest:
                raise Refusal("lacks")
        self.digests, self.pieces = digests, {name: self.pieces[name] for name in digests}
        own = (state for name, state in self.pieces.items() if not name.startswith("task."))
        return {key: value for state in own for key, value in state.items()}

    def build(self) -> Built:
        """Return the task, with its model and images. It is made of the pieces of the first request."""
        if self.built is None:
            method, train, device = self.terms.config.method, self.terms.config.train, self.device
            task = self.terms.task(self.pieces)
            model, normalise = method.model(task).to(device), task.normalise().to(device)
            samples = self.data.samples(normalise, device)
            captured = None
            if uses_cuda_graphs(EngineOptions(), method, device):
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                normalise.memory_format = torch.channels_last
                captured = CapturedClient(method, task, train, normalise.mean)
            self.built = Built(task, model, samples, captured)
        return self.built

    def train(self, built: Built, round_: int, received: State, state: State) -> tuple[Upload, State]:
        """Train this site's client for one round, and return its upload and its new state."""
        method, train, samples = self.terms.config.method, self.terms.config.train, built.samples["train"]
        if built.captured is not None:
            try:
                return built.captured.train(round_, self.facts, samples, received, state)
            except CannotCapture as why:
                print(f"{method.name} cannot be captured, so a plain loop trains it: {why}", file=sys.stderr)
                self.built = built = replace(built, captured=None)
        return train_client(method, built.model, built.task, train, round_, self.facts, samples, received, state)
