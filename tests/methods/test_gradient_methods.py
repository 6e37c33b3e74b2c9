"""FedAvg, FedProx, FedDyn and SCAFFOLD by hand: two clients, a linear model, two steps, two rounds.

The model starts at zero with two classes and one feature, so W = (u, −u) and b = (v, −v) at all times, and
p₀ = σ(2(ux + v)), ∂f/∂u = (p₀ − [y=0]) x, ∂f/∂v = p₀ − [y=0]. The oracle below is plain Python on (u, v).
"""

import math

import pytest
import torch
from small import image_data, linear_task, play, samples, task

from fedbm.config.options import TrainOptions
from fedbm.methods import FedAvg, FedDyn, FedProx, Scaffold

CLIENTS = [(1.0, 0, 1), (2.0, 1, 3)]  # x, y, n: client 1 has the same sample three times
LR, STEPS, ROUNDS = 0.5, 2, 2
TRAIN = TrainOptions(batch=3, epochs=STEPS, lr=LR, lr_decay=1.0, momentum=0.0, weight_decay=0.0)


def gradient(u, v, x, y):
    error = 1 / (1 + math.exp(-2 * (u * x + v))) - (y == 0)
    return error * x, error


def local(start, x, y, extra):
    """STEPS of gradient descent on (u, v); *extra*(u, v) is added to each gradient. Also the mean raw gradient."""
    (u, v), raw = start, [0.0, 0.0]
    for _ in range(STEPS):
        g, e = gradient(u, v, x, y), extra(u, v)
        raw = [raw[i] + g[i] / STEPS for i in (0, 1)]
        u, v = u - LR * (g[0] + e[0]), v - LR * (g[1] + e[1])
    return (u, v), raw


def run(method):
    model = method.model(linear_task(1, 2))
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    data = [samples([[int(x)]] * n, [y] * n) for x, y, n in CLIENTS]
    server, states, _ = play(method, linear_task(1, 2), TRAIN, data, ROUNDS, model=model)
    assert torch.allclose(server["head.weight"][0], -server["head.weight"][1])
    return (float(server["head.weight"][0, 0]), float(server["head.bias"][0])), server, states


def test_fedavg_by_hand():
    theta = (0.0, 0.0)
    for _ in range(ROUNDS):
        results = [local(theta, x, y, lambda u, v: (0, 0))[0] for x, y, _ in CLIENTS]
        theta = tuple((1 * results[0][i] + 3 * results[1][i]) / 4 for i in (0, 1))
    assert run(FedAvg())[0] == pytest.approx(theta, abs=1e-12)


def test_fedprox_by_hand():
    theta, mu = (0.0, 0.0), 0.7
    for _ in range(ROUNDS):
        start = theta
        results = [
            local(start, x, y, lambda u, v, s=start: (mu * (u - s[0]), mu * (v - s[1])))[0] for x, y, _ in CLIENTS
        ]
        theta = tuple((1 * results[0][i] + 3 * results[1][i]) / 4 for i in (0, 1))
    assert run(FedProx(mu=mu))[0] == pytest.approx(theta, abs=1e-12)


def test_feddyn_by_hand():
    theta, alpha, h, g = (0.0, 0.0), 0.3, [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]
    for _ in range(ROUNDS):
        start, results = theta, []
        for i, (x, y, _) in enumerate(CLIENTS):
            bend = lambda u, v, s=start, k=i: (alpha * (u - s[0]) - g[k][0], alpha * (v - s[1]) - g[k][1])  # noqa: E731
            results.append(local(start, x, y, bend)[0])
        for i in (0, 1):
            g[i] = [g[i][j] - alpha * (results[i][j] - start[j]) for j in (0, 1)]
        h = [h[j] - alpha / 2 * sum(r[j] - start[j] for r in results) for j in (0, 1)]
        theta = tuple(sum(r[j] for r in results) / 2 - h[j] / alpha for j in (0, 1))
    found, server, states = run(FedDyn(alpha=alpha))
    assert found == pytest.approx(theta, abs=1e-12)
    assert float(server["feddyn.h.head.weight"][0, 0]) == pytest.approx(h[0], abs=1e-12)
    assert float(states[1]["feddyn.g.head.bias"][0]) == pytest.approx(g[1][1], abs=1e-12)


def test_scaffold_by_hand():
    theta, c, own = (0.0, 0.0), [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]
    for _ in range(ROUNDS):
        start, results, change = theta, [], [0.0, 0.0]
        for i, (x, y, _) in enumerate(CLIENTS):
            result, raw = local(start, x, y, lambda u, v, k=i, c=c: (c[0] - own[k][0], c[1] - own[k][1]))
            results.append((result, raw))
        for i, (_, raw) in enumerate(results):
            change = [change[j] + (raw[j] - own[i][j]) / 2 for j in (0, 1)]
            own[i] = raw
        c = [c[j] + change[j] for j in (0, 1)]
        theta = tuple(sum(r[0][j] for r in results) / 2 for j in (0, 1))
    found, server, states = run(Scaffold())
    assert found == pytest.approx(theta, abs=1e-12)
    assert float(server["scaffold.c.head.weight"][0, 0]) == pytest.approx(c[0], abs=1e-12)
    assert float(states[0]["scaffold.c.head.bias"][0]) == pytest.approx(own[0][1], abs=1e-12)


def test_fedprox_without_a_pull_is_fedavg_to_the_last_bit():
    train = TrainOptions(batch=4, epochs=2)
    plain, _, _ = play(FedAvg(), task(), train, image_data(), rounds=3, participation=0.5)
    loose, _, _ = play(FedProx(mu=0.0), task(), train, image_data(), rounds=3, participation=0.5)
    tight, _, _ = play(FedProx(mu=0.1), task(), train, image_data(), rounds=3, participation=0.5)
    assert all(torch.equal(plain[name], loose[name]) for name in plain)
    assert not torch.equal(plain["body.conv.weight"], tight["body.conv.weight"])


@pytest.mark.parametrize(
    ("method", "mean", "own"), [(FedDyn(), "feddyn.h.", "feddyn.g."), (Scaffold(), "scaffold.c.", "scaffold.c.")]
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_servers_vector_is_the_mean_of_all_clients_after_every_round(method, mean, own, optimizer):
    """h = (1/N) Σ_all g_i and c = (1/N) Σ_all c_i at half participation; clients not yet seen have 0."""
    rounds = []

    def observe(server, states):
        for name in [n.removeprefix(mean) for n in server if n.startswith(mean)]:
            total = sum(state[own + name].double() for state in states.values()) / 4
            assert torch.allclose(server[mean + name].double(), total, atol=1e-6, rtol=1e-5)
        rounds.append(len(states))

    train = TrainOptions(batch=4, optimizer=optimizer)
    play(method, task(), train, image_data(), rounds=5, participation=0.5, observe=observe)
    assert rounds[0] == 2
    assert rounds[-1] >= 3


def test_scaffold_with_one_client_is_plain_training():
    """c and c_i are equal after every round, so the correction is nothing."""
    train = TrainOptions(batch=4, epochs=2)
    plain, _, _ = play(FedAvg(), task(), train, image_data(1), rounds=3)
    scaffold, _, _ = play(Scaffold(), task(), train, image_data(1), rounds=3)
    assert all(torch.allclose(plain[name].double(), scaffold[name].double(), atol=1e-6) for name in plain)


def test_scaffolds_variate_is_option_two_under_plain_sgd():
    """c_i⁺ = c_i − c + (θ − θ_i) / (steps · η) without momentum and decay."""
    train = TrainOptions(batch=4, momentum=0.0, weight_decay=0.0, lr=0.1)
    method, data = Scaffold(), image_data(1)
    initial = method.server_init(method.model(task()))
    server, states, _ = play(method, task(), train, data, rounds=1)
    inferred = (initial["head.weight"] - server["head.weight"]) / (1 * 0.1)
    assert torch.allclose(states[0]["scaffold.c.head.weight"], inferred, atol=1e-5)


def test_batch_norm_statistics_are_averaged_by_size_where_weights_are_not():
    for method in (FedDyn(), Scaffold()):
        server, _, uploads = play(method, task(), TrainOptions(batch=4), image_data(), rounds=1)
        n = torch.tensor([u.n for u in uploads], dtype=torch.float64)
        stacked = torch.stack([u.state["body.bn.running_var"].double() for u in uploads])
        assert torch.allclose(server["body.bn.running_var"].double(), (n[:, None] * stacked).sum(0) / n.sum())
        assert server["body.bn.num_batches_tracked"] == max(u.state["body.bn.num_batches_tracked"] for u in uploads)


def test_scaffold_sends_twice_fedavgs_weights_and_feddyn_no_more_than_fedavg():
    for method, keys in ((Scaffold(), {"model", "control"}), (FedDyn(), {"model"})):
        model = method.model(task())
        pieces = method.broadcast(method.server_init(model), 1)
        assert set(pieces) == keys
        assert set(pieces["model"].state) == set(model.state_dict())
