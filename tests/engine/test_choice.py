"""Which round is reported, how several models make one score, and what a refused update leaves behind."""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small import TinyBody, image_data, samples, task

import fedbm
from fedbm.engine import evaluate
from fedbm.engine.device import run_to_end
from fedbm.engine.evaluate import predict_probabilities, score_states
from fedbm.methods import FedAvg, FedDyn, Scaffold

TINY = {"body": TinyBody, "size": 16, "batch": 32, "clients": 4, "beta": 0.5, "workers": 1}


def test_the_highest_validation_accuracy_plus_f1_is_reported_the_earliest_on_ties(tmp_path, monkeypatch):
    """Round 3 has round 2's sum in other parts, round 4 the best accuracy, and round 1 the best test score."""
    val = iter([(0.5, 0.5), (0.25, 0.875), (0.875, 0.25), (0.9, 0.1)])
    test = iter([0.9, 0.1, 0.2, 0.3])

    def scripted(*_):
        accuracy, f1 = next(val)
        common, reached = {"auc": None, "recall": 0.0, "precision": 0.0}, next(test)
        yield
        return {
            "val": ({"accuracy": accuracy, "f1": f1, **common}, np.zeros((10, 10), dtype=int)),
            "test": ({"accuracy": reached, "f1": reached, **common}, np.zeros((10, 10), dtype=int)),
        }

    until_two = fedbm.simulate("digits", method="fedavg", rounds=2, out=str(tmp_path / "two"), **TINY)
    monkeypatch.setattr(evaluate, "score_states", scripted)
    run = fedbm.simulate("digits", method="fedavg", rounds=4, out=str(tmp_path / "four"), **TINY)
    assert run.summary["best"]["round"] == 2
    assert run.summary["best"]["accuracy"] == 0.1, "the test score of that round"
    assert run.summary["last"]["accuracy"] == 0.3
    best, expected = load_file(run.path / "model.safetensors"), load_file(until_two.path / "checkpoint.safetensors")
    assert all(torch.equal(value, expected[name]) for name, value in best.items()), "and the model is that round's"


class Scores(torch.nn.Module):
    """The same logits for every image."""

    def __init__(self):
        super().__init__()
        self.of_each = torch.nn.Parameter(torch.zeros(2))

    def forward(self, images):
        return self.of_each.expand(len(images), 2)


@pytest.mark.parametrize(("ensemble", "accuracy", "matrix"), [(True, 1.0, [[0, 0], [0, 1]]), (False, 0.5, None)])
def test_models_vote_by_their_mean_probabilities_or_are_scored_one_by_one(ensemble, accuracy, matrix):
    """One sample of class 1. The first model gives it 0.9, the second 0.4: their mean is right, the second is not."""
    model = Scores()
    states = [{"of_each": torch.tensor(p).log()} for p in ([0.1, 0.9], [0.6, 0.4])]
    method = SimpleNamespace(
        ensemble=ensemble,
        trained_parts=("of_each",),
        global_states=lambda server, clients: iter(states),
    )
    sets = {"test": samples([[1]], [1], torch.float32)}
    (scores, found) = run_to_end(score_states(method, model, method.global_states({}, {}), sets, "fp32"))["test"]
    assert scores["accuracy"] == accuracy
    assert found.tolist() == (matrix or [[0, 0], [1, 1]])


def test_scoring_uses_eval_mode_and_does_not_change_the_model():
    [data] = image_data(1)
    method = FedAvg()
    model = method.model(task()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one_by_one = [model.eval()(data.batch(torch.tensor([i]))[0]).softmax(1) for i in range(3)]
    found = predict_probabilities(model.train(), data)
    assert np.allclose(found, torch.cat(one_by_one).detach().numpy(), atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def spoilt(kind):
    """*kind*, but client 1's update is NaN in the rounds 2 and 3; what it would keep for itself is sound."""

    @dataclasses.dataclass(frozen=True)
    class Spoilt(kind):
        name: ClassVar[str] = f"spoilt-{kind.name}"

        def broadcast(self, server, round_):
            pieces = super().broadcast(server, round_)
            return {**pieces, "round": type(pieces["model"])(round_, {"round": torch.tensor(float(round_))})}

        def start_client(self, model, received, client, facts):
            received = dict(received)
            round_ = received.pop("round")
            return {**super().start_client(model, received, client, facts), "round": round_}

        def finish_client(self, model, data, context, facts):
            upload, own = super().finish_client(model, data, context, facts)
            if facts.client == 1 and context["round"] in (2, 3):
                upload["head.bias"] = upload["head.bias"] * float("nan")
            return upload, own

    return Spoilt()


@pytest.mark.parametrize(
    ("kind", "mean", "own"), [(FedDyn, "feddyn.h.", "feddyn.g."), (Scaffold, "scaffold.c.", "scaffold.c.")]
)
def test_after_a_rejected_update_a_client_resumes_from_its_former_state(kind, mean, own, tmp_path):
    """So that h = (1/N) Σ_all g_i and c = (1/N) Σ_all c_i still hold, N being all clients and not those selected."""
    run = fedbm.simulate("digits", method=spoilt(kind), rounds=3, participation=0.75, out=str(tmp_path), **TINY)
    dropped = [d["client"] for r in run.rounds for d in r["dropped"]]
    assert 1 in run.rounds[0]["selected"], "it has a former state"
    assert dropped
    server = load_file(run.path / "checkpoint.safetensors")
    states = {path.stem: load_file(path) for path in run.path.glob("clients/*.safetensors")}
    assert "1-1" in states
    for name in [n.removeprefix(mean) for n in server if n.startswith(mean)]:
        expected = sum(state[own + name].double() for state in states.values()) / 4
        assert torch.allclose(server[mean + name].double(), expected, atol=1e-6, rtol=1e-5)
