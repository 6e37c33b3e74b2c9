"""The server's optimiser: its formulas by hand, plain BatchNorm statistics, resuming, and methods that refuse it."""

import math
import tomllib
from typing import get_args, get_type_hints

import pytest
import torch
from safetensors.torch import load_file
from whole_runs import after_round, assert_same_run, folder_of, play, small_plan_of

from fedbm.config.options import TrainOptions
from fedbm.engine.server_optimizer import ServerOptimizer
from fedbm.errors import FedBMError
from fedbm.methods import METHODS
from fedbm.runs.run_config import check_config, make_config, to_sections, to_toml

KINDS = get_args(get_type_hints(TrainOptions)["server_optimizer"])
MEANS = (2.0, -1.0, 0.5)  # of three rounds, from θ = 1


def steps(**options):
    """θ after each round, for one weight; the variance is not a parameter."""
    optimizer, server, found = ServerOptimizer(TrainOptions(**options)), {"w": torch.tensor([1.0])}, []
    for mean in MEANS:
        new = {"w": torch.tensor([mean]), "running_var": torch.tensor([mean])}
        server = optimizer.step(server, new, ["w"])
        assert server["running_var"].item() == mean, "a plain mean"
        found.append(server["w"].item())
    return found


def test_momentum_by_hand():
    """Δ = 1, then −2.5 from θ = 1.5, then 0 from θ = 0.5: m = 1, −2, −1 with β = 0.5; η = 0.5."""
    assert steps(server_optimizer="momentum", server_lr=0.5, server_momentum=0.5) == pytest.approx([1.5, 0.5, 0.0])


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adam_and_yogi_by_hand(kind):
    theta, m, v, expected = 1.0, 0.0, 1e-6, []
    for mean in MEANS:
        delta = mean - theta
        m = 0.8 * m + 0.2 * delta
        v = 0.99 * v + 0.01 * delta**2 if kind == "adam" else v - 0.01 * delta**2 * math.copysign(1, v - delta**2)
        theta += 0.1 * m / (math.sqrt(v) + 1e-3)
        expected.append(theta)
    assert steps(server_optimizer=kind, server_lr=0.1, server_momentum=0.8) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("adam", 0.04, 0.0397), ("yogi", 0.04, 0.0399), ("yogi", 0.0025, 0.0026)]
)
def test_second_moments_by_hand(kind, before, after):
    """Δ² = 0.01: Adam adds 0.01 (Δ² − v) to v, Yogi moves v by 0.01 Δ² towards Δ²; m = 0.5·0.3 + 0.5·0.1 = 0.2."""
    moments = {"server_optimizer.m.w": torch.tensor([0.3]), "server_optimizer.v.w": torch.tensor([before])}
    optimizer = ServerOptimizer(TrainOptions(server_optimizer=kind, server_lr=0.1, server_momentum=0.5), moments)
    new = optimizer.step({"w": torch.tensor([0.0])}, {"w": torch.tensor([0.1])}, ["w"])
    assert optimizer.moments["server_optimizer.v.w"].item() == pytest.approx(after, rel=1e-5)
    assert new["w"].item() == pytest.approx(0.1 * 0.2 / (after**0.5 + 0.001), rel=1e-5)


def test_the_second_moment_starts_at_epsilon_squared():
    """Δ = ε = 0.001: Adam's v stays at 10⁻⁶, and the first step is η Δ / (ε + ε)."""
    optimizer = ServerOptimizer(TrainOptions(server_optimizer="adam", server_lr=0.1, server_momentum=0.0))
    new = optimizer.step({"w": torch.tensor([0.0])}, {"w": torch.tensor([0.001])}, ["w"])
    assert new["w"].item() == pytest.approx(0.05, rel=1e-4)


def trained(tiny, out, **options):
    plan = small_plan_of(tiny, out, **options)
    play(plan)
    return load_file(folder_of(plan) / "checkpoint.safetensors")  # of the last round


def test_without_momentum_at_rate_1_it_is_the_mean(tiny, tmp_path):
    plain = trained(tiny, tmp_path)
    same = trained(tiny, tmp_path, server_optimizer="momentum", server_momentum=0)
    more = trained(tiny, tmp_path, server_optimizer="momentum")
    assert all(torch.allclose(plain[name].double(), same[name].double(), atol=1e-6) for name in plain)
    assert not torch.allclose(plain["head.weight"], more["head.weight"], atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_do_more_than_average_refuse_it(name):
    config = make_config(to_sections({"method": name, "server_optimizer": "yogi"}))
    if name in ("feddyn", "scaffold", "fednh", "fedproto", "ccvr", "fedgen", "central"):
        with pytest.raises(
            FedBMError, match=f"^{name} does not average as FedAvg does, so server_optimizer = yogi does"
        ):
            check_config(config)
    else:
        check_config(config)
        assert config.train.server_optimizer == "yogi"


def test_adam_and_yogi_have_a_default_rate_of_their_own(tiny, tmp_path):
    """The saved configuration contains it; a rate that the user sets is kept, and other runs keep their ids."""
    rates = {kind: small_plan_of(tiny, tmp_path, server_optimizer=kind).config.train.server_lr for kind in KINDS}
    assert rates == {"mean": 1.0, "momentum": 1.0, "adam": 0.01, "yogi": 0.01}
    default, given, kept = (
        small_plan_of(tiny, tmp_path, server_optimizer="adam", **rate)
        for rate in ({}, {"server_lr": 0.01}, {"server_lr": 1})
    )
    assert default.id == given.id != kept.id
    assert kept.config.train.server_lr == 1
    assert "server_lr = 0.01" in to_toml(default.config)
    assert make_config(tomllib.loads(to_toml(kept.config))).train == kept.config.train
    assert small_plan_of(tiny, tmp_path).id == small_plan_of(tiny, tmp_path, server_lr=1, server_optimizer="mean").id


def test_a_run_is_resumed_with_its_moments(tiny, tmp_path):
    """They are in the checkpoint, and neither sent nor part of the model. The generator is not in their steps."""
    options = {"server_optimizer": "adam", "server_lr": 0.01, "server_average": 0.5}
    whole, stopped = (small_plan_of(tiny, tmp_path / name, **options) for name in ("whole", "stopped"))
    play(whole)
    play(stopped, until=after_round(2))
    saved = load_file(folder_of(stopped) / "checkpoint.safetensors")
    moments = {name for name in saved if name.startswith("server_optimizer.")}
    assert {name.split(".", 2)[2] for name in moments} == {
        "body.conv.weight", "body.conv.bias", "body.bn.weight", "body.bn.bias", "head.weight", "head.bias"
    }  # fmt: skip
    play(small_plan_of(tiny, tmp_path / "stopped", **options))
    assert_same_run(folder_of(whole), folder_of(stopped))


def test_parts_that_clients_do_not_train_or_send_take_no_step(tiny, tiny_fedbm, tmp_path):
    """FedBM's generator is trained by the server; FedROD's personal heads stay at the clients."""
    for settings, absent in ((tiny_fedbm, "generator."), ({**tiny, "method": "fedrod"}, "personal.")):
        plan = small_plan_of(settings, tmp_path, server_optimizer="momentum", rounds=2)
        play(plan)
        names = [
            n for n in load_file(folder_of(plan) / "checkpoint.safetensors") if n.startswith("server_optimizer.m.")
        ]
        assert names
        assert not any(name.startswith(f"server_optimizer.m.{absent}") for name in names)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mean"])
def test_captured_is_the_plain_loop_to_rounding(kind, tiny, tmp_path):
    """The clients of the captured engine send tensors in channels_last; the server's and its moments are not."""
    settings = {**tiny, "device": "cuda", "precision": "fp32", "lr": 0.001, "server_optimizer": kind, "rounds": 3}
    plans = [small_plan_of(settings, tmp_path / kind, engine=kind) for kind in ("reference", "captured")]
    for plan in plans:
        play(plan)
    plain, captured = (load_file(folder_of(plan) / "checkpoint.safetensors") for plan in plans)
    assert plain.keys() == captured.keys()
    assert any(key.startswith("server_optimizer.m.") for key in plain)
    for key, value in plain.items():
        assert torch.allclose(value.double(), captured[key].double(), rtol=1e-3, atol=2e-4), key
