"""What must hold for every method: the contract, gradients, either optimiser and norm, half participation, resuming."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from small import TinyBody, image_data, task
from torch import nn

import fedbm
from fedbm.errors import FedBMError
from fedbm.methods import METHODS, FedAvg, Method
from fedbm.methods.base import Batch, Facts, Phase, move_to, train_only
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import make_config, to_sections
from fedbm.runs.run_view import read_run
from fedbm.runs.runner import run, run_path

TINY = {"data": "digits", "size": 16, "width": 4, "batch": 128, "clients": 4, "beta": 0.5, "rounds": 2}
FEDBM = {"generator_width": 8, "generator_steps": 3, "generator_every": 1, "generator_batch": 8, "pseudo_batch": 8}


@pytest.fixture(scope="module")
def few():
    """Every fourth digit."""
    digits = fedbm.load("digits", size=16)
    return dataclasses.replace(
        digits, images=digits.images[::4], labels=digits.labels[::4], split=digits.split[::4], checksum="few"
    )


def settings(name, **more):
    return {**TINY, "method": name, **(FEDBM if name == "fedbm" else {}), **more}


@pytest.mark.parametrize("name", METHODS)
def test_fulfils_the_contract_and_documents_itself(name):
    method = METHODS[name]()
    assert isinstance(method, Method)
    assert METHODS[method.name] is type(method)
    assert set(method.shares) <= {field.name for field in dataclasses.fields(Facts)}
    module = __import__(type(method).__module__, fromlist=["__doc__"])
    assert "Reference:" in module.__doc__ or name == "central"
    for field in dataclasses.fields(method):
        assert field.metadata["meaning"]


@pytest.mark.parametrize("name", METHODS)
def test_gradient_of_the_local_loss(name):
    """Against central differences in float64, along a random direction in each parameter the phase trains."""
    method = METHODS[name]()
    model = method.model(task()).double()
    server = {k: v.double() if v.is_floating_point() else v for k, v in method.server_init(model).items()}
    facts = Facts(0, 6, (3, 2, 1))
    client = {k: v.double() for k, v in method.client_init(task(), facts).items()}
    received = {k: v for piece in method.broadcast(server, 1).values() for k, v in piece.state.items()}
    context = method.start_client(model, received, client, facts)
    if name == "fedproto":  # after a first round, so that the prototype term counts
        model.prototypes.known.fill_(True)
    if name == "moon":  # the same: in the first round the contrast has no gradient
        model.previous.conv.weight.data.add_(0.1)
    images, labels = image_data(1)[0].batch(torch.arange(3))
    draws = method.sample_randomness(model, task(), received, 1, torch.Generator().manual_seed(0))
    batch = Batch(images.double(), labels, {k: v[0] for k, v in move_to(draws, model.body.conv.weight).items()})
    for phase in method.phases(1):
        trained = train_only(model, phase.train)
        model.eval()  # running statistics must not move between evaluations

        def value(part):
            terms = method.loss(model, batch, context)
            # FedROD's two terms train different parts, and the personal one stops the gradient of what it reads
            return terms["personal" if part == "personal" else "generic"] if name == "fedrod" else sum(terms.values())

        rng = torch.Generator().manual_seed(1)
        for full_name, parameter in trained:
            part = full_name.partition(".")[0]
            [gradient] = torch.autograd.grad(value(part), [parameter])
            direction = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            with torch.no_grad():
                values = []
                for sign in (1, -1):
                    parameter += sign * 1e-6 * direction
                    values.append(value(part).item())
                    parameter -= sign * 1e-6 * direction
            slope = (gradient * direction).sum().item()
            assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(("optimizer", "norm"), [("sgd", "batch"), ("adam", "group")])
@pytest.mark.parametrize("name", METHODS)
def test_runs_with_either_optimiser_and_norm_at_half_participation(name, optimizer, norm, few, tmp_path):
    more = {"lambda_dis": 0} if name == "fedbm" and norm == "group" else {}
    if name == "fedbn":
        norm = "batch"  # without it, the method refuses
    chosen = settings(name, optimizer=optimizer, norm=norm, lr=0.01 if optimizer == "sgd" else 0.001, out=str(tmp_path))
    plan = make_plan(make_config(to_sections({**chosen, **more})), dataset=few)
    for _ in run(plan):
        pass
    done = read_run(run_path(plan))
    assert [len(r["selected"]) for r in done.rounds] == [1 if name == "central" else 2] * 2
    assert all(r.dropped == () for r in done.rounds)
    assert 0 <= done.summary["best"]["f1"] <= 1
    personal = done.summary["personal"]["last"]
    assert (personal is not None) == (name in ("fedrep", "fedbn", "fedrod", "fedproto"))
    assert (done.summary["bytes"]["sent"] == 0) == (name == "central")


@pytest.mark.parametrize(
    "name", ["feddyn", "scaffold", "moon", "fedrep", "fedbn", "fedrod", "fedproto", "central", "fedgen", "ccvr"]
)
def test_client_state_survives_an_interruption_bit_for_bit(name, few, tmp_path):
    results = []
    for folder, stops in (("whole", False), ("stopped", True)):
        config = make_config(to_sections(settings(name, rounds=3, keep_optimizer=True, out=str(tmp_path / folder))))
        plan = make_plan(config, dataset=few, make_body=TinyBody)
        if stops:
            playing = run(plan)
            for event in playing:
                if event.record is not None and event.round == 2:
                    break
            playing.close()
        for _ in run(make_plan(config, dataset=few, make_body=TinyBody)):
            pass
        path = run_path(plan)
        states = {p.name: load_file(p) for p in sorted(path.glob("clients/*.safetensors"))}
        results.append(({"model": load_file(path / "model.safetensors"), **states}, read_run(path).summary["best"]))
    (whole, best), (stopped, best_again) = results
    assert best == best_again
    assert whole.keys() == stopped.keys()
    assert len(whole) > 1
    for file, tensors in whole.items():
        assert all(torch.equal(value, stopped[file][name]) for name, value in tensors.items())


@pytest.mark.parametrize("name", ["moon", "fedlc", "fedntd", "fedbn", "fedglcl", "fedgen", "ccvr"])
def test_clients_with_one_image_or_one_class(name, tmp_path):
    """One image, images of one class, and no image of class 0; class 9 is nowhere."""
    data = fedbm.load("digits", size=16)
    train = data.indices("train")
    of_class = [train[data.labels[train] == label] for label in range(10)]
    clients = (of_class[0][:1], of_class[1][:20], np.concatenate([own[20:24] for own in of_class[1:9]]))
    average = {} if name == "fedbn" else {"server_average": 0.5}
    chosen = settings(name, clients=3, participation=1.0, out=str(tmp_path), **average)
    del chosen["beta"]
    partition = fedbm.Partition(clients, "own", {})
    plan = make_plan(make_config(to_sections(chosen)), dataset=data, partition=partition, make_body=TinyBody)
    for _ in run(plan):
        pass
    done = read_run(run_path(plan))
    assert all(record.dropped == () for record in done.rounds)
    assert 0 <= done.summary["last"]["f1"] <= 1


class Pooled(nn.Module):
    """A body without parameters: 12 features of a 16 × 16 image."""

    def forward(self, images):
        return F.adaptive_avg_pool2d(images, (3, 4)).flatten(1)


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in METHODS), ("fedbm", {"classifier": "random"})])
def test_a_body_without_parameters(name, more, tmp_path):
    """It serves the methods that train something beside it; the others say so before anything is made."""
    options = settings(name, rounds=1, out=str(tmp_path / "runs"), **more) | (
        {"lambda_dis": 0} if name == "fedbm" else {}
    )
    for made_here in ("data", "method", "width"):
        del options[made_here]
    if name == "fedrep" or more:
        with pytest.raises(FedBMError) as refused:
            fedbm.simulate("digits", method=name, body=Pooled, **options)
        assert str(refused.value) == (
            f"{name} has a phase that trains only the body, but there are no parameters to train. "
            "Use a body that has some, freeze less of it, or use another method."
        )
        assert not (tmp_path / "runs").exists()
    elif name == "fedbn":
        with pytest.raises(FedBMError, match="^FedBN needs a body with BatchNorm layers"):
            fedbm.simulate("digits", method=name, body=Pooled, **options)
    else:
        assert fedbm.simulate("digits", method=name, body=Pooled, **options).finished


class Mistyped(FedAvg):
    name: ClassVar[str] = "mistyped"

    def phases(self, epochs):
        return (Phase(epochs, ("bodyy",)),)


def test_a_method_of_ones_own_that_trains_nothing(tmp_path):
    with pytest.raises(FedBMError, match="mistyped has a phase that trains only the bodyy"):
        fedbm.simulate("digits", method=Mistyped(), size=16, width=4, rounds=1, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


class SiloBN(FedAvg):
    name = "silobn"

    def local_names(self, model):
        return {name for name in model.state_dict() if "running_" in name}


class PersonalSiloBN(SiloBN):
    common_model = False


def test_a_method_whose_server_has_no_whole_model_must_say_so(tmp_path):
    tiny = {"size": 16, "width": 4, "rounds": 1, "clients": 2, "out": tmp_path}
    with pytest.raises(FedBMError, match=r"silobn has no whole model to score: body\.bn1\.running_mean stays"):
        fedbm.simulate("digits", method=SiloBN(), **tiny)
    assert fedbm.simulate("digits", method=PersonalSiloBN(), **tiny).finished


def test_a_body_of_ones_own_serves_every_method(tmp_path):
    for name in METHODS:
        options = settings(name, rounds=1, out=str(tmp_path))
        for made_here in ("data", "method", "width"):
            del options[made_here]
        done = fedbm.simulate("digits", method=name, body=lambda: TinyBody(features=12), **options)
        assert done.finished
