"""FedBM written out: five rounds of five clients, two at a time, the generator trained after the second and the fourth.

The oracle is plain tensors, autograd and the formulas. Of the package it takes the initial values, who is selected, the
order of the batches and what is drawn; its generator doubles images before it convolves them. Clients have 1 to 9
samples and lack classes, batches wrap, and momentum, weight decay and the learning rate's decay are on.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from small import play, task

from fedbm.config.options import TrainOptions
from fedbm.engine.local_training import Samples
from fedbm.engine.round_loop import select_clients
from fedbm.methods import FedBM
from fedbm.utils.seeds import torch_rng

LABELS = [[2], [0, 0, 0, 1, 1, 0, 1, 0, 0], [2, 2, 2, 2], [0, 1, 2, 0, 1, 2], [1, 1, 0]]
TASK = task(seed=5, hflip=True, vflip=True)
TRAIN = TrainOptions(batch=4, epochs=2, lr=0.05, lr_decay=0.9, weight_decay=0.01)
ROUNDS, RATIO, K = 5, 0.5, 3
METHOD = FedBM(
    temperature=6.0,
    pseudo_batch=5,
    lambda_div=0.7,
    lambda_dis=0.3,
    generator_every=2,
    generator_steps=3,
    generator_batch=7,
    generator_lr=0.01,
    generator_width=4,
)
MEAN, VAR, COUNT = (f"body.bn.{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))


def data():
    rng = torch.Generator().manual_seed(3)
    return [
        Samples(
            torch.randint(0, 256, (len(own), 16, 16, 1), generator=rng, dtype=torch.uint8),
            torch.tensor(own),
            torch.arange(len(own)),
            TASK.normalise().double(),
        )
        for own in LABELS
    ]


def channels(vector):
    return vector[None, :, None, None]


def moments(x):
    mean = x.mean((0, 2, 3))
    return mean, (x - channels(mean)).square().mean((0, 2, 3))


def embed(state, images, training):
    """h [B,D]. Training normalises by the batch and moves the running statistics in *state*."""
    x = F.conv2d(images, state["body.conv.weight"], state["body.conv.bias"], stride=2)
    mean, var = moments(x) if training else (state[MEAN], state[VAR])
    if training:
        count = x.numel() / x.shape[1]
        state[MEAN] = 0.9 * state[MEAN] + 0.1 * mean.detach()
        state[VAR] = 0.9 * state[VAR] + 0.1 * var.detach() * count / (count - 1)
        state[COUNT] = state[COUNT] + 1
    x = (x - channels(mean)) / (channels(var) + 1e-5).sqrt()
    x = (x * channels(state["body.bn.weight"]) + channels(state["body.bn.bias"])).clamp_min(0).mean((2, 3))
    x = x @ state["project.weight"].T + state["project.bias"]
    return x / x.norm(dim=1, keepdim=True)


def lkcc(state, images, labels, training):
    """logsumexp_k(τ h·μ_k + ½ τ² h²·σ²_k) − τ h·μ_y."""
    h, tau = embed(state, images, training), METHOD.temperature
    logits = tau * h @ state["head.mean"].T + tau**2 / 2 * h.square() @ state["head.variance"].T
    return (logits.logsumexp(1) - tau * (h * state["head.mean"][labels]).sum(1)).mean()


def condition(state, draws):
    """z = μ_y + Σ_m ε_m (E_m − μ_y)/√(M−1) + 0.01 ε."""
    rows = []
    for label, weights, noise in zip(draws["labels"], draws["prompts"], draws["noise"], strict=True):
        own = state["concepts.embeddings"][label]
        mean = own.sum(0) / len(own)
        spread = sum(w * (e - mean) for w, e in zip(weights, own, strict=True)) / math.sqrt(len(own) - 1)
        rows.append(mean + spread + 0.01 * noise)
    return torch.stack(rows)


def paint(state, z, training):
    """Five blocks at 16 px, the last four on a doubled image; training moves BatchNorm's statistics in *state*."""
    x = F.linear(z, state["generator.expand.weight"], state["generator.expand.bias"]).view(len(z), 4, 1, 1)
    for block in range(5):
        if block:
            x = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        x = F.conv2d(x, state[f"generator.blocks.{3 * block}.weight"], padding=1)
        norm = {n: state[f"generator.blocks.{3 * block + 1}.{n}"] for n in ("running_mean", "running_var")}
        norm |= {n: state[f"generator.blocks.{3 * block + 1}.{n}"] for n in ("weight", "bias")}
        x = F.leaky_relu(F.batch_norm(x, **norm, training=training, momentum=0.1, eps=1e-5), 0.2)
    return F.conv2d(x, state["generator.paint.weight"], state["generator.paint.bias"], padding=1).sigmoid()


def look(images, draws):
    return (F.pad(images, (4, 4, 4, 4))[:, :, draws["rows"]][:, :, :, draws["columns"]] - 0.5) / 0.25


def step_of(drawn, step):
    rows = {name.removeprefix("pseudo."): value[step] for name, value in drawn.items()}
    return {name: value.double() if value.is_floating_point() else value for name, value in rows.items()}


def client_result(model, server, round_, client, own, with_generator):
    """Momentum SGD on body and projection; the trained parts with their statistics."""
    state = dict(server)
    names = [n for n, _ in model.named_parameters() if n.startswith(("body.", "project."))]
    momentum = dict.fromkeys(names, 0.0)
    n = len(own.labels)
    for epoch in range(TRAIN.epochs):
        stream = (TASK.seed, "client", round_, client, 0, epoch)
        order = torch.randperm(n, generator=torch_rng(*stream, "order"))
        steps = math.ceil(n / TRAIN.batch)
        drawn = model.draw_pseudo(steps, METHOD.pseudo_batch, torch_rng(*stream, "draws", 0))
        for step in range(steps):
            chosen = [int(order[(step * TRAIN.batch + i) % n]) for i in range(TRAIN.batch)]
            images = (own.images[chosen].permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.25
            labels = own.labels[chosen]
            if with_generator:
                draws = step_of(drawn, step)
                images = torch.cat([images, look(paint(server, condition(server, draws), False), draws)])
                labels = torch.cat([labels, draws["labels"]])
            values = [state[name].clone().requires_grad_() for name in names]
            trained = {**state, **dict(zip(names, values, strict=True))}
            gradients = torch.autograd.grad(lkcc(trained, images, labels, True), values)
            state |= {name: trained[name] for name in (MEAN, VAR, COUNT)}
            for name, gradient in zip(names, gradients, strict=True):
                momentum[name] = 0.9 * momentum[name] + gradient + TRAIN.weight_decay * state[name]
                state[name] = state[name] - TRAIN.lr * TRAIN.lr_decay ** (round_ - 1) * momentum[name]
    return {name: state[name] for name in (*names, MEAN, VAR, COUNT)}


def mean_by_size(results, sizes):
    mean = {n: sum(s * r[n] for s, r in zip(sizes, results, strict=True)) / sum(sizes) for n in results[0]}
    return {**mean, COUNT: max(result[COUNT] for result in results)}


def generator_loss(state, draws):
    z = condition(state, draws)
    images, labels = paint(state, z, True), draws["labels"]
    seen = look(images, draws)
    mean, var = moments(F.conv2d(seen, state["body.conv.weight"], state["body.conv.bias"], stride=2))
    distribution = (mean - state[MEAN]).norm() + (var - state[VAR]).norm()
    diversity = torch.zeros((), dtype=torch.float64)
    for k in range(K):
        own = [i for i, label in enumerate(labels) if label == k]
        pairs = [(a, b) for a in own for b in own if a < b]
        for a, b in pairs:
            ratio = (images[a] - images[b]).abs().sum() / (z[a] - z[b]).abs().sum()
            diversity = diversity + 1 / (ratio + 1e-5) / len(pairs) / K
    return lkcc(state, seen, labels, False) + METHOD.lambda_div * diversity + METHOD.lambda_dis * distribution


def train_generator(model, server, round_):
    """Adam from fresh moments with β = (0.5, 0.999); the generator's weights and statistics go on from before."""
    state = {name: value.clone() for name, value in server.items()}
    names = [n for n, _ in model.named_parameters() if n.startswith("generator.")]
    first, second = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    drawn = model.draw_pseudo(METHOD.generator_steps, METHOD.generator_batch, torch_rng(TASK.seed, "generator", round_))
    for step in range(METHOD.generator_steps):
        values = [state[name].clone().requires_grad_() for name in names]
        loss = generator_loss({**state, **dict(zip(names, values, strict=True))}, step_of(drawn, step))
        for name, gradient in zip(names, torch.autograd.grad(loss, values), strict=True):
            first[name] = 0.5 * first[name] + 0.5 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient.square()
            m, v = first[name] / (1 - 0.5 ** (step + 1)), second[name] / (1 - 0.999 ** (step + 1))
            state[name] = state[name] - METHOD.generator_lr * m / (v.sqrt() + 1e-8)
    return state


@pytest.fixture(scope="module")
def found_and_expected():
    clients = data()
    found, _, _ = play(METHOD, TASK, TRAIN, clients, ROUNDS, RATIO)
    model = METHOD.model(TASK).double()
    server = {name: value.clone() for name, value in model.state_dict().items()}
    for round_ in range(1, ROUNDS + 1):
        selected = select_clients(len(clients), RATIO, TASK.seed, round_)
        results = [client_result(model, server, round_, c, clients[c], round_ > 2) for c in selected]
        server |= mean_by_size(results, [len(LABELS[c]) for c in selected])
        if round_ in (2, 4):
            server = train_generator(model, server, round_)
    return found, server


@pytest.mark.parametrize("part", ["body", "project", "head", "concepts", "generator"])
def test_fedbm_written_out(found_and_expected, part):
    found, expected = found_and_expected
    names = [n for n in found if n.startswith(f"{part}.") and not (part == "generator" and n.endswith("_tracked"))]
    assert names
    for name in names:
        assert torch.allclose(found[name].double(), expected[name].double(), rtol=0, atol=1e-9), name
