"""Methods that change FedAvg's local loss, written out: two clients, a linear model, two steps, two rounds.

The oracles are plain tensors and the formulas of each method, as in test_classifier_oracles.py.
"""

import math

import pytest
import torch
from small import image_data, linear_task, play, task
from test_classifier_oracles import ROUNDS, by_size, ce, close, run, sample, sgd

from fedbm.config.options import TrainOptions
from fedbm.methods import FedAvg, FedLC, FedNTD, Moon
from fedbm.methods.base import Batch, Facts
from fedbm.methods.fedlc import label_margins
from fedbm.methods.fedntd import not_true_divergence
from fedbm.methods.moon import contrastive_loss

SHARED = ("body.map.weight", "head.weight", "head.bias")
LONGER = TrainOptions(batch=4, epochs=2)


def is_fedavg(method):
    """Whether three rounds at half participation leave FedAvg's server state, to the last bit."""
    plain, _, _ = play(FedAvg(), task(), LONGER, image_data(), rounds=3, participation=0.5)
    found, _, _ = play(method, task(), LONGER, image_data(), rounds=3, participation=0.5)
    assert found.keys() == plain.keys()
    return all(torch.equal(plain[name], found[name]) for name in plain)


# --- MOON -----------------------------------------------------------------------------------------------------------


def test_moon_contrast_by_hand():
    """cos(z, z_g) = 0.6 and cos(z, z_p) = 0 for the first row, 0 and 1 for the second; τ = 0.5."""
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    towards, away = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    rows = [-math.log(math.exp(g / 0.5) / (math.exp(g / 0.5) + math.exp(p / 0.5))) for g, p in ((0.6, 0), (0, 1))]
    assert contrastive_loss(z, towards, away, 0.5).item() == pytest.approx(sum(rows) / 2, rel=1e-6)


def test_moon_written_out():
    start, server, states = run(Moon(contrast_weight=0.7, contrast_temperature=0.4))
    shared, previous = [start[name] for name in SHARED], {}
    for _ in range(ROUNDS):
        results, received = [], shared[0]
        for i in (0, 1):
            x, y, _ = sample(i)
            before = previous.get(i, received)

            def loss(W, A, a, x=x, y=y, received=received, before=before):
                z, towards, away = W @ x, received @ x, before @ x
                g, p = (z @ v / (z.norm() * v.norm()) / 0.4 for v in (towards, away))
                return ce(A @ z + a, y) - 0.7 * torch.log(g.exp() / (g.exp() + p.exp()))

            results.append(sgd(loss, *shared))
            previous[i] = results[i][0]
        shared = by_size(*results)
    for name, value in zip(SHARED, shared, strict=True):
        close(server[name], value)
    for i in (0, 1):
        assert set(states[i]) == {"previous.map.weight"}
        close(states[i]["previous.map.weight"], previous[i])


def test_moon_without_a_contrast_is_fedavg_to_the_last_bit():
    assert is_fedavg(Moon(contrast_weight=0.0))
    assert not is_fedavg(Moon(contrast_weight=1.0))


def test_moon_has_no_contrast_in_a_clients_first_round():
    """The previous model is then the received one: the term is μ log 2, without a gradient."""
    plain, _, _ = play(FedAvg(), task(), LONGER, image_data())
    found, _, uploads = play(Moon(contrast_weight=3.0), task(), LONGER, image_data())
    assert all(torch.allclose(plain[name].double(), found[name].double(), atol=1e-6) for name in plain)
    assert [upload.losses["contrast"] for upload in uploads] == pytest.approx([3 * math.log(2)] * 4, rel=1e-5)


# --- FedLC ----------------------------------------------------------------------------------------------------------


def test_fedlc_margins_by_hand():
    like = torch.zeros((), dtype=torch.float64)
    assert label_margins((16, 0, 81), "mask", like, 3.0).tolist() == pytest.approx([1.5, math.inf, 1.0])
    assert label_margins((16, 0, 81), "one", like, 3.0).tolist() == pytest.approx([1.5, 3.0, 1.0])
    assert label_margins((16, 0, 81), "mask", like, 0.0).tolist() == [0.0, 0.0, 0.0], "τ = 0 masks nothing"


def test_fedlc_written_out():
    start, server, _ = run(FedLC(tau=0.6, missing_classes="one"))
    shared = [start[name] for name in SHARED]
    for _ in range(ROUNDS):
        results = []
        for i in (0, 1):
            x, y, n = sample(i)
            margin = torch.full((2,), 0.6, dtype=torch.float64)
            margin[y] = 0.6 * n**-0.25
            results.append(sgd(lambda W, A, a, x=x, y=y, m=margin: ce(A @ (W @ x) + a - m, y), *shared))
        shared = by_size(*results)
    for name, value in zip(SHARED, shared, strict=True):
        close(server[name], value)


def test_fedlc_without_calibration_is_fedavg_to_the_last_bit():
    assert is_fedavg(FedLC(tau=0.0))
    assert not is_fedavg(FedLC(tau=1.0))


def test_fedlc_leaves_missing_classes_out():
    """Two of three classes at the client, with the margin 2 (16^(-1/4) − 1) = −1; one class alone has no loss."""
    method = FedLC(tau=2.0)
    model = method.model(linear_task(2, 3))
    images = torch.tensor([[3.0, 1.0], [0.0, 2.0]]).view(2, 1, 1, 2)
    context = method.start_client(model, method.server_init(model), {}, Facts(0, 17, (16, 0, 1)))
    gaps = [z[2] - z[0] for z in model(images).tolist()]  # log(1 + e^margin e^(z_c − z_y)) for y = 0 and y = 2
    expected = (math.log1p(math.exp(gaps[0] - 1)) + math.log1p(math.exp(1 - gaps[1]))) / 2
    found = method.loss(model, Batch(images, torch.tensor([0, 2])), context)["cross_entropy"]
    assert found.item() == pytest.approx(expected, rel=1e-6)
    context = method.start_client(model, method.server_init(model), {}, Facts(0, 4, (0, 4, 0)))
    assert method.loss(model, Batch(images, torch.tensor([1, 1])), context)["cross_entropy"].item() == 0


# --- FedNTD ---------------------------------------------------------------------------------------------------------


def test_fedntd_divergence_by_hand():
    """True classes 0 and 2: softmaxes over (1, 2) and (0, 1) alone, at τ = 2; the true logits do not matter."""
    logits, taught = torch.tensor([[5.0, 1.0, 3.0], [0.0, 2.0, -7.0]]), torch.tensor([[0.0, 2.0, 0.0], [1.0, 1.0, 9.0]])

    def kl(ours, theirs):
        q, g = ([math.exp(v / 2) / sum(math.exp(w / 2) for w in values) for v in values] for values in (ours, theirs))
        return sum(g[c] * math.log(g[c] / q[c]) for c in (0, 1))

    expected = (kl((1, 3), (2, 0)) + kl((0, 2), (1, 1))) / 2
    assert not_true_divergence(logits, taught, torch.tensor([0, 2]), 2.0).item() == pytest.approx(expected, rel=1e-6)


def test_fedntd_written_out():
    """Three classes: the not-true ones are the other two."""
    start, server, states = run(FedNTD(distillation_weight=0.8, distillation_temperature=0.5), classes=3)
    shared = [start[name] for name in SHARED]
    for _ in range(ROUNDS):
        results, (V, B, b) = [], shared
        for i in (0, 1):
            x, y, _ = sample(i)
            others = [c for c in range(3) if c != y]
            g = ((B @ (V @ x) + b)[others] / 0.5).softmax(0)

            def loss(W, A, a, x=x, y=y, others=others, g=g):
                z = A @ (W @ x) + a
                q = (z[others] / 0.5).softmax(0)
                return ce(z, y) + 0.8 * (g * (g / q).log()).sum()

            results.append(sgd(loss, *shared))
        shared = by_size(*results)
    for name, value in zip(SHARED, shared, strict=True):
        close(server[name], value)
    assert states == {0: {}, 1: {}}, "nothing is kept"


def test_fedntd_without_distillation_is_fedavg_to_the_last_bit():
    assert is_fedavg(FedNTD(distillation_weight=0.0))
    assert not is_fedavg(FedNTD(distillation_weight=1.0))


def test_fedntd_with_two_classes_is_fedavg():
    found, plain = run(FedNTD())[1], run(FedAvg())[1]
    assert all(torch.equal(found[name], plain[name]) for name in plain)
