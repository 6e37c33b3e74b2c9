"""Local training: the batch plan, the learning rate, and that one client with all the data is a plain loop."""

import dataclasses

import pytest
import torch
import whole_runs
from hypothesis import given
from hypothesis import strategies as st
from small import image_data, play, task

from fedbm.config.options import TrainOptions
from fedbm.engine.local_training import CHUNK, Samples, epoch_plan, learning_rate, train_client
from fedbm.errors import FedBMError
from fedbm.methods import METHODS, FedAvg
from fedbm.methods.base import Facts
from fedbm.utils.seeds import torch_rng


@given(n=st.integers(1, 50), batch=st.integers(1, 20), seed=st.integers(0, 100))
def test_every_sample_once_then_wrapped_to_the_start(n, batch, seed):
    plan = epoch_plan(n, batch, torch_rng(seed))
    assert plan.shape == (-(-n // batch), batch)
    flat = plan.flatten()
    assert sorted(flat[:n].tolist()) == list(range(n))
    assert torch.equal(flat[n:], flat[: len(flat) - n]), "the last batch resumes from the start of the permutation"


def test_learning_rate_decays_by_round_or_by_local_epoch():
    by_round = TrainOptions(lr=1.0, lr_decay=0.5, epochs=2)
    by_epoch = dataclasses.replace(by_round, lr_decay_every="epoch")
    assert [learning_rate(by_round, r, e) for r in (1, 2) for e in (0, 1)] == [1.0, 1.0, 0.5, 0.5]
    assert [learning_rate(by_epoch, r, e) for r in (1, 2) for e in (0, 1)] == [1.0, 0.5, 0.25, 0.125]


def samples(n: int = 11) -> Samples:
    rng = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (n, 16, 16, 1), generator=rng, dtype=torch.uint8)
    labels = torch.randint(0, 3, (n,), generator=rng)
    return Samples(images, labels, torch.arange(n), task().normalise())


def facts(data: Samples) -> Facts:
    own = data.labels[data.indices]
    return Facts(0, len(own), tuple(own.bincount(minlength=3).tolist()))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_client_with_all_data_and_kept_optimiser_is_a_plain_loop(optimizer):
    """Three rounds of train_client, the state handed on, against a loop written out with torch alone."""
    train = TrainOptions(optimizer=optimizer, epochs=2, batch=4, keep_optimizer=True, lr_decay=0.9)
    method, data = FedAvg(), samples()
    model = method.model(task())
    server, client = method.server_init(model), {}
    for round_ in (1, 2, 3):
        upload, client = train_client(method, model, task(), train, round_, facts(data), data, server, client)
        server = {**server, **upload.state}

    plain = method.model(task()).train()
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    extra = {"momentum": 0.9} if optimizer == "sgd" else {}
    steps = kind(plain.parameters(), lr=0.01, weight_decay=5e-4, **extra)
    for round_ in (1, 2, 3):
        for epoch in (0, 1):
            steps.param_groups[0]["lr"] = 0.01 * 0.9 ** (round_ - 1)
            order = torch.randperm(11, generator=torch_rng(0, "client", round_, 0, 0, epoch, "order"))
            for start in (0, 4, 8):
                chosen = order[(torch.arange(start, start + 4)) % 11]
                images = (data.images[chosen].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
                images = images.squeeze(1).unsqueeze(1)  # the usual strides
                loss = torch.nn.functional.cross_entropy(plain(images), data.labels[chosen])
                steps.zero_grad()
                loss.backward()
                steps.step()
    assert all(torch.equal(value, server[name]) for name, value in plain.state_dict().items())


def test_frozen_batch_norm_by_hand():
    """After round 1 a loop written out with torch normalises by the statistics that round 1 left, and keeps them."""
    train = TrainOptions(batch=4, lr_decay=1, keep_optimizer=True, freeze_batchnorm_after=1)
    method, data = FedAvg(), samples()
    model = method.model(task())
    server, client = method.server_init(model), {}
    states = []
    for round_ in (1, 2, 3):
        upload, client = train_client(method, model, task(), train, round_, facts(data), data, server, client)
        server = {**server, **upload.state}
        states.append(server)

    plain = method.model(task()).train()
    steps = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for round_ in (1, 2, 3):
        order = torch.randperm(11, generator=torch_rng(0, "client", round_, 0, 0, 0, "order"))
        for start in (0, 4, 8):
            chosen = order[(torch.arange(start, start + 4)) % 11]
            images = (data.images[chosen].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
            images = images.squeeze(1).unsqueeze(1)  # the usual strides
            x, bn = plain.body.conv(images), plain.body.bn
            if round_ == 1:
                x = bn(x)
            else:
                mean, variance, weight, bias = (
                    value[:, None, None] for value in (bn.running_mean, bn.running_var, bn.weight, bn.bias)
                )
                x = (x - mean) / (variance + bn.eps).sqrt() * weight + bias
            loss = torch.nn.functional.cross_entropy(plain.head(x.relu().mean(dim=(2, 3))), data.labels[chosen])
            steps.zero_grad()
            loss.backward()
            steps.step()
    assert all(torch.allclose(value, server[name], atol=1e-6) for name, value in plain.state_dict().items())
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(states[0][f"body.bn.{name}"], states[2][f"body.bn.{name}"]), name
    assert not torch.equal(states[0]["body.bn.weight"], states[2]["body.bn.weight"]), "they are still trained"


@pytest.mark.parametrize("name", METHODS)
def test_frozen_statistics_stay_to_the_bit_at_every_server(name):
    """The weighted mean of equal statistics is that statistic, however clients are weighted."""
    fast = {"generator_steps": 2, "generator_width": 4, "generator_every": 1} if name == "fedbm" else {}
    seen, method = [], METHODS[name](**fast)
    data = image_data(1 if method.central else 4)
    train = TrainOptions(batch=4, freeze_batchnorm_after=2, rounds=4)
    play(method, task(), train, data, 4, observe=lambda server, states: seen.append({**server, **states[0]}))
    body = "ccvr.trained.body" if name == "ccvr" else "body"  # CCVR's other body is that of the round before
    kept = [name for name in seen[0] if name.startswith(f"{body}.bn.running")]
    assert kept
    assert all(not torch.equal(seen[0][name], seen[1][name]) for name in kept)
    assert all(torch.equal(seen[1][name], seen[3][name]) for name in kept)
    assert not torch.equal(seen[1]["body.conv.weight"], seen[3]["body.conv.weight"])


def test_freezing_needs_batch_norm(tiny, tmp_path):
    with pytest.raises(FedBMError, match="^freeze_batchnorm_after needs BatchNorm layers with running statistics, but"):
        whole_runs.play(whole_runs.plan_of(tiny, tmp_path, norm="group", freeze_batchnorm_after=1))


def test_only_a_changed_value_enters_the_run_id(tiny, tmp_path):
    chosen = ({}, {"freeze_batchnorm_after": 0}, {"freeze_batchnorm_after": 1})
    ids = [whole_runs.plan_of(tiny, tmp_path, **more).id for more in chosen]
    assert ids[0] == ids[1] != ids[2]


def test_optimiser_starts_afresh_unless_kept():
    data, method = samples(), FedAvg()
    train = TrainOptions(batch=4)
    model = method.model(task())
    _, client = train_client(method, model, task(), train, 1, facts(data), data, method.server_init(model), {})
    assert client == {}


def test_one_sample_fills_a_batch_by_wrapping():
    data = samples(1)
    method = FedAvg()
    model = method.model(task())
    server = method.server_init(model)
    upload, _ = train_client(method, model, task(), TrainOptions(), 1, facts(data), data, server, {})
    assert upload.n == 1
    assert all(bool(value.isfinite().all()) for value in upload.state.values())
    assert set(upload.losses) == {"cross_entropy"}


def test_draws_are_made_in_chunks_of_a_bounded_size():
    """Random input never takes memory for more than CHUNK steps, and each chunk has its own stream."""

    class Curious(FedAvg):
        seen: list[tuple[int, int]] = []  # noqa: RUF012

        def sample_randomness(self, model, task, received, steps, rng):
            self.seen.append((steps, rng.initial_seed()))
            return {}

    data = samples(CHUNK + 5)
    method = Curious()
    model = method.model(task())
    train_client(method, model, task(), TrainOptions(batch=1), 1, facts(data), data, method.server_init(model), {})
    assert [steps for steps, _ in method.seen] == [CHUNK, 5]
    assert method.seen[0][1] != method.seen[1][1]
