"""What the methods minimise: ridge logistic regression over four strongly skewed clients of equal size.

Full batches, five local steps, constant learning rate, no momentum or decay, float64. The optimum of (1/N) Σ f_i comes
from Newton's method. SCAFFOLD and FedDyn must reach it at full and half participation; FedAvg stops elsewhere, since
five local steps take each client towards its own optimum, and reaches it with one step and everybody there.
"""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from small import linear_task, play, samples

from fedbm.config.options import TrainOptions
from fedbm.methods import FedAvg, FedDyn, Scaffold

pytestmark = pytest.mark.long

RIDGE, CLIENTS, EACH = 0.1, 4, 12


def with_ridge(method):
    """The same method with (λ/2)‖θ‖² inside its loss, where control variates and h see it."""

    class Ridge(type(method)):
        def loss(self, model, batch, context):
            ridge = 0.5 * RIDGE * sum(parameter.square().sum() for parameter in model.parameters())
            return {**super().loss(model, batch, context), "ridge": ridge}

    return Ridge(**dataclasses.asdict(method))


@pytest.fixture(scope="module")
def clients():
    rng = torch.Generator().manual_seed(0)
    data = []
    for client in range(CLIENTS):
        vectors = torch.randint(0, 4, (EACH, 3), generator=rng)
        vectors[:, client % 3] += 2
        labels = torch.full((EACH,), client % 3)
        labels[:2] = (client + 1) % 3
        data.append(samples(vectors.tolist(), labels.tolist(), scale=4))
    return data


@pytest.fixture(scope="module")
def optimum(clients):
    def objective(theta):
        losses = []
        for data in clients:
            x, y = data.batch(torch.arange(EACH))
            losses.append(F.cross_entropy(x.flatten(1) @ theta[:9].view(3, 3).T + theta[9:], y))
        return sum(losses) / CLIENTS + 0.5 * RIDGE * theta.square().sum()

    theta = torch.zeros(12, dtype=torch.float64)
    for _ in range(20):
        gradient = torch.autograd.functional.jacobian(objective, theta)
        theta = theta - torch.linalg.solve(torch.autograd.functional.hessian(objective, theta), gradient)
    assert float(gradient.abs().max()) < 1e-15
    return theta


def distance(method, clients, optimum, rounds, participation, steps=5, lr=1.0):
    train = TrainOptions(batch=EACH, epochs=steps, lr=lr, lr_decay=1.0, momentum=0.0, weight_decay=0.0)
    server, _, _ = play(with_ridge(method), linear_task(3, 3), train, clients, rounds, participation)
    found = torch.cat([server["head.weight"].flatten(), server["head.bias"]])
    return float((found - optimum).norm())


@pytest.mark.parametrize(
    ("method", "rounds", "participation"),
    [(Scaffold(), 70, 1.0), (Scaffold(), 150, 0.5), (FedDyn(alpha=0.3), 70, 1.0), (FedDyn(alpha=0.3), 140, 0.5)],
)
def test_scaffold_and_feddyn_reach_the_optimum(method, rounds, participation, clients, optimum):
    assert distance(method, clients, optimum, rounds, participation) < 1e-8


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedavg_stops_elsewhere(participation, clients, optimum):
    assert distance(FedAvg(), clients, optimum, 40, participation) > 1e-2


def test_fedavg_with_one_step_and_everybody_reaches_it(clients, optimum):
    assert distance(FedAvg(), clients, optimum, 200, 1.0, steps=1) < 1e-8
