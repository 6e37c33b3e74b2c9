"""The same rounds in pfl-research (`pip install pfl[pytorch]`), in one process."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from work import EVALUATION_BATCH, Counts, Measured, Settings, Work, counting

NEVER = 10**9


class Model(nn.Module):
    """The shared model with the two functions that pfl-research calls. A sample is its index in the data set."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.inner, self.work = work.model(), work

    def loss(self, indices: Tensor) -> Tensor:
        self.train()
        images, labels = self.work.batch(indices)
        return nn.functional.cross_entropy(self.inner(images), labels)

    @torch.no_grad()
    def metrics(self, indices: Tensor) -> dict[str, Any]:
        self.eval()
        images, labels = self.work.batch(indices)
        right = int((self.inner(images).argmax(1) == labels).sum())
        return {"accuracy": Weighted(right, len(labels))}


class Clock(TrainingProcessCallback):
    """Note the time and the counts after each round. Put it after the evaluation."""

    def __init__(self, work: Work, counts: Counts, measured: Measured, warm_up: int) -> None:
        self.work, self.counts, self.measured, self.warm_up = work, counts, measured, warm_up
        self.start = 0.0

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.work.wait()
        now = time.perf_counter()
        if central_iteration >= self.warm_up:  # it counts from 0
            self.measured.counts.append(Counts(**vars(self.counts)))
            self.measured.seconds.append(now - self.start)
        self.start = now
        self.counts.clients = self.counts.steps = self.counts.trained = self.counts.evaluated = 0
        return False, Metrics()


def measure(settings: Settings, warm_up: int) -> Measured:
    work, counts, measured = Work(settings), Counts(), Measured("pfl-research")
    os.environ["PFL_PYTORCH_DEVICE"] = str(work.device)
    model = Model(work).to(work.device)
    users = itertools.chain.from_iterable(work.selected)

    def user_dataset(client: int) -> PyTorchTensorDataset:
        counts.clients += 1
        return PyTorchTensorDataset((work.clients[client],), user_id=str(client))

    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum)

    wrapped = PyTorchModel(model, optimizer, torch.optim.SGD(model.parameters(), lr=1.0))
    dataset = FederatedDataset(user_dataset, lambda: next(users))
    backend = SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()])
    evaluation = CentralEvaluationCallback(PyTorchTensorDataset((work.scored,)), NNEvalHyperParams(EVALUATION_BATCH))
    params = NNAlgorithmParams(settings.rounds, NEVER, len(work.selected[0]), 0)
    train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=settings.lr, local_batch_size=settings.batch)
    clock = Clock(work, counts, measured, warm_up)
    with counting(counts):
        FederatedAveraging().run(params, backend, wrapped, train, callbacks=[evaluation, clock])
    return measured
