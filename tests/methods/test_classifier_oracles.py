"""FedRep, FedROD, FedNH, FedProto, FedETF and FedGLCL: two clients, a linear model, two steps, two rounds, written out.

The oracles below are plain tensors and the formulas of each method; nothing of the package is in them but the initial
values. A client's samples are all alike, so every batch has the same loss and the order does not matter.
"""

import pytest
import torch
import torch.nn.functional as F
from small import linear_task, play, samples
from torch import nn

from fedbm.config.options import TrainOptions
from fedbm.methods import FedETF, FedGLCL, FedNH, FedProto, FedRep, FedROD

CLIENTS = [((1, 2), 0, 1), ((2, 1), 1, 3)]  # x, y, n
LR, STEPS, ROUNDS = 0.25, 2, 2
TRAIN = TrainOptions(batch=3, epochs=STEPS, lr=LR, lr_decay=1.0, momentum=0.0, weight_decay=0.0)


class Linear(nn.Module):
    """f = W x, three features of two inputs."""

    feature_dim = 3

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(2, 3, bias=False)

    def forward(self, x):
        return self.map(x.flatten(1))


def setting(classes=2):
    task = linear_task(2, classes)
    return type(task)(**{**vars(task), "make_body": Linear})


def run(method, classes=2):
    """The package's two rounds, and the initial state they started from."""
    model = method.model(setting(classes)).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    data = [samples([list(x)] * n, [y] * n) for x, y, n in CLIENTS]
    server, states, _ = play(method, setting(classes), TRAIN, data, ROUNDS, model=model)
    return start, server, states


def sgd(loss, *parameters):
    """STEPS of gradient descent; the new values."""
    values = [p.clone().requires_grad_() for p in parameters]
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss(*values), values)
        values = [(v - LR * g).detach().requires_grad_() for v, g in zip(values, gradients, strict=True)]
    return [v.detach() for v in values]


def sample(i):
    x, y, n = CLIENTS[i]
    return torch.tensor(x, dtype=torch.float64), torch.tensor(y), n


def ce(logits, y):
    return logits.logsumexp(0) - logits[y]


def by_size(one, two):
    return [(a + 3 * b) / 4 for a, b in zip(one, two, strict=True)]


def close(found, expected):
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_fedrep_written_out():
    start, server, states = run(FedRep())
    W, heads = start["body.map.weight"], [(start["head.weight"], start["head.bias"])] * 2
    for _ in range(ROUNDS):
        bodies = []
        for i in (0, 1):
            x, y, _ = sample(i)
            A, a = sgd(lambda A, a, W=W, x=x, y=y: ce(A @ (W @ x) + a, y), *heads[i])
            heads[i] = (A, a)
            bodies.append(sgd(lambda W, A=A, a=a, x=x, y=y: ce(A @ (W @ x) + a, y), W))
        [W] = by_size(*bodies)
    close(server["body.map.weight"], W)
    for i in (0, 1):
        close(states[i]["head.weight"], heads[i][0])
        close(states[i]["head.bias"], heads[i][1])


def test_fedrod_written_out():
    start, server, states = run(FedROD(gamma=0.5, missing_classes="one"))
    shared = [start[n] for n in ("body.map.weight", "head.weight", "head.bias")]
    own = [[start["personal.weight"], start["personal.bias"]]] * 2
    for _ in range(ROUNDS):
        results = []
        for i in (0, 1):
            x, y, n = sample(i)
            prior = torch.zeros(2, dtype=torch.float64)
            prior[y] = 0.5 * torch.tensor(float(n), dtype=torch.float64).log()

            def loss(W, A, a, P, p, x=x, y=y, prior=prior):
                f = W @ x
                z = A @ f + a
                return ce(z + prior, y) + ce(z.detach() + P @ f.detach() + p, y)

            *result, P, p = sgd(loss, *shared, *own[i])
            results.append(result)
            own[i] = [P, p]
        shared = by_size(*results)
    for name, value in zip(("body.map.weight", "head.weight", "head.bias"), shared, strict=True):
        close(server[name], value)
    close(states[1]["personal.weight"], own[1][0])
    close(states[0]["personal.bias"], own[0][1])


def test_fednh_written_out():
    start, server, _ = run(FedNH(rho=0.6))
    W, s, V = start["body.map.weight"], start["head.scale"], start["head.weight"]
    for _ in range(ROUNDS):
        results, sums = [], torch.zeros_like(V)
        for i in (0, 1):
            x, y, n = sample(i)
            new = sgd(lambda W, s, V=V, x=x, y=y: ce(s * V @ F.normalize(W @ x, dim=0), y), W, s)
            results.append(new)
            sums[y] += n * F.normalize(new[0] @ x, dim=0)  # all its samples are alike: their mean is one of them
        W, s = ((a + b) / 2 for a, b in zip(*results, strict=True))
        counts = torch.tensor([1.0, 3.0], dtype=torch.float64)
        V = F.normalize(0.6 * V + 0.4 * F.normalize(sums / counts[:, None], dim=1), dim=1)
    close(server["body.map.weight"], W)
    close(server["head.scale"], s)
    close(server["head.weight"], V)


def test_fedproto_written_out():
    start, server, states = run(FedProto(lambda_proto=0.3))
    own = [[start[n] for n in ("body.map.weight", "head.weight", "head.bias")]] * 2
    C = None
    for _ in range(ROUNDS):
        means = torch.zeros(2, 3, dtype=torch.float64)
        for i in (0, 1):
            x, y, _ = sample(i)

            def loss(W, A, a, x=x, y=y, C=C):
                pull = 0.0 if C is None else 0.3 * (W @ x - C[y]).square().mean()
                return ce(A @ (W @ x) + a, y) + pull

            own[i] = sgd(loss, *own[i])
            means[y] = own[i][0] @ x
        C = means
    close(server["prototypes.value"], C)
    assert server["prototypes.known"].tolist() == [True, True]
    for i in (0, 1):
        close(states[i]["body.map.weight"], own[i][0])
        close(states[i]["head.bias"], own[i][2])


def test_fedetf_written_out():
    start, server, _ = run(FedETF(missing_classes="one"))
    names = ("body.map.weight", "project.weight", "project.bias", "head.scale")
    shared, V = [start[n] for n in names], start["head.frame"]
    assert float(V[:, 0] @ V[:, 1]) == pytest.approx(-1.0, abs=1e-6)
    for _ in range(ROUNDS):
        results = []
        for i in (0, 1):
            x, y, n = sample(i)
            prior = torch.zeros(2, dtype=torch.float64)
            prior[y] = torch.tensor(float(n), dtype=torch.float64).log()

            def loss(W, P, p, beta, x=x, y=y, prior=prior):
                return ce(beta * F.normalize(P @ (W @ x) + p, dim=0) @ V + prior, y)

            results.append(sgd(loss, *shared))
        shared = by_size(*results)
    for name, value in zip(names, shared, strict=True):
        close(server[name], value)


def test_fedglcl_written_out():
    start, server, _ = run(FedGLCL(logit_scale=3.0))
    names = ("body.map.weight", "project.weight", "project.bias")
    shared, T = [start[n] for n in names], start["head.text"]
    for _ in range(ROUNDS):
        results = []
        for i in (0, 1):
            x, y, _ = sample(i)
            results.append(sgd(lambda W, P, p, x=x, y=y: ce(3.0 * T @ F.normalize(P @ (W @ x) + p, dim=0), y), *shared))
        shared = by_size(*results)
    for name, value in zip(names, shared, strict=True):
        close(server[name], value)
