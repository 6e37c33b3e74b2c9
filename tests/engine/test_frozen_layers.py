"""Layers of the body that are not trained: their weights and statistics stay, and they are sent once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from whole_runs import folder_of, plan_of, play, records_of

from fedbm.config.options import ModelOptions
from fedbm.engine.checkpoint import load_tensors
from fedbm.errors import FedBMError
from fedbm.methods import METHODS
from fedbm.methods.base import frozen_names, size_of
from fedbm.models.backbone import body_factory, choose_layers

FROZEN = "conv1,bn1,layer1"
CLASSES, FEATURES = 3, 32  # of the tests' images, of ResNet-18 with width 4


def state_of(plan: Any) -> dict[str, torch.Tensor]:
    return load_tensors(folder_of(plan) / "checkpoint.safetensors")[0]


@pytest.mark.parametrize("name", METHODS)
def test_frozen_layers_stay_to_the_bit(
    name: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    concepts = {"concept_file": tiny_fedbm["concept_file"]} if name == "fedglcl" else {}
    settings = tiny_fedbm if name == "fedbm" else {**tiny, **concepts, "method": name}
    plan = plan_of(settings, tmp_path, rounds=2, freeze=FROZEN, keep_optimizer=True)
    model = plan.config.method.model(plan.task)
    play(plan)
    kept = load_tensors(next(folder_of(plan).glob("clients/*.safetensors")))[0]
    found = {**kept, **state_of(plan)}  # FedProto's models and FedBN's statistics stay with the clients
    frozen = frozen_names(model)
    assert {"body.conv1.weight", "body.bn1.running_var", "body.layer1.1.bn2.num_batches_tracked"} <= frozen
    assert not any(layer.startswith(("body.layer2", "body.layer3")) for layer in frozen)
    for part, value in model.state_dict().items():
        if part in frozen:
            assert torch.equal(found[part], value), part
    assert not torch.equal(found["body.layer2.0.conv1.weight"], model.state_dict()["body.layer2.0.conv1.weight"])
    assert not any(slot.partition("body.")[2].startswith("layer1") for slot in found if slot.startswith("optimizer."))


def play_frozen(settings: dict[str, Any], out: Path) -> tuple[Path, int, int, int]:
    """Run two rounds; return folder, and bytes of frozen tensors, all other tensors, and parameters among these."""
    plan = plan_of(settings, out, rounds=2, participation=1, freeze=FROZEN)
    play(plan)
    model = plan.config.method.model(plan.task)
    frozen = [f"body.{name}" for name in body_factory(ModelOptions(width=4), 1)().state_dict() if is_frozen(name)]
    state = {name: value for name, value in model.state_dict().items() if name.startswith(("body.", "head."))}
    fixed = size_of({name: state[name] for name in frozen})
    own = {name: p.data for name, p in model.named_parameters() if name in state and name not in frozen}
    return folder_of(plan), fixed, size_of(state) - fixed, size_of(own)


def is_frozen(name: str) -> bool:
    return name.partition(".")[0] in FROZEN.split(",")


def client_states(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [load_tensors(path)[0] for path in sorted(folder.glob("clients/*.safetensors"))]


def test_they_are_sent_once(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder, fixed, trained, _ = play_frozen(tiny, tmp_path)
    traffic = [record["bytes"] for record in records_of(folder / "rounds.jsonl")]
    assert traffic == [
        {"sent": 4 * (trained + fixed), "received": 4 * trained},
        {"sent": 4 * trained, "received": 4 * trained},
    ]


def test_ccvr_sends_the_frozen_layers_of_one_copy_once(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Two copies of the model go down, one goes up with the statistics; frozen layers go down once in all."""
    folder, fixed, trained, _ = play_frozen({**tiny, "method": "ccvr"}, tmp_path)
    statistics = 4 * CLASSES * (1 + FEATURES + FEATURES**2)
    traffic = [record["bytes"] for record in records_of(folder / "rounds.jsonl")]
    assert traffic == [
        {"sent": 4 * (2 * trained + fixed), "received": 4 * (trained + statistics)},
        {"sent": 4 * 2 * trained, "received": 4 * (trained + statistics)},
    ]


def test_scaffold_has_no_control_variates_of_frozen_layers(tiny: dict[str, Any], tmp_path: Path) -> None:
    """A variate as large as the trained parameters goes down and up, next to the model, and one is kept."""
    folder, fixed, trained, parameters = play_frozen({**tiny, "method": "scaffold"}, tmp_path)
    traffic = [record["bytes"] for record in records_of(folder / "rounds.jsonl")]
    assert traffic == [
        {"sent": 4 * (trained + fixed + parameters), "received": 4 * (trained + parameters)},
        {"sent": 4 * (trained + parameters), "received": 4 * (trained + parameters)},
    ]
    assert [size_of(kept) for kept in client_states(folder)] == [parameters] * 4


def test_feddyn_keeps_no_gradients_of_frozen_layers(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder, fixed, trained, parameters = play_frozen({**tiny, "method": "feddyn"}, tmp_path)
    traffic = [record["bytes"] for record in records_of(folder / "rounds.jsonl")]
    assert traffic == [
        {"sent": 4 * (trained + fixed), "received": 4 * trained},
        {"sent": 4 * trained, "received": 4 * trained},
    ]
    assert [size_of(kept) for kept in client_states(folder)] == [parameters] * 4
    server = load_tensors(folder / "checkpoint.safetensors")[0]
    assert size_of({name: value for name, value in server.items() if name.startswith("feddyn.h.")}) == parameters


def test_moon_keeps_no_frozen_layers_of_its_previous_body(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder, _, trained, _ = play_frozen({**tiny, "method": "moon"}, tmp_path)
    head = 4 * CLASSES * (FEATURES + 1)
    assert [size_of(kept) for kept in client_states(folder)] == [trained - head] * 4


def test_layers_by_name_and_by_share() -> None:
    body = body_factory(ModelOptions(width=4), 1)()
    assert choose_layers(body, "layer1.0") == tuple(f"layer1.0.{name}" for name in ("conv1", "bn1", "conv2", "bn2"))
    assert choose_layers(body, "bn1, conv1") == ("bn1", "conv1")
    assert choose_layers(body, "0.05") == ("conv1", "bn1")
    everything = choose_layers(body, "1")
    assert len(everything) == 40
    assert choose_layers(body, "0.5") == everything[:20]
    assert choose_layers(body, "0.0001") == ("conv1",)


@pytest.mark.parametrize(
    ("freeze", "sentence"),
    [
        ("layre1", 'freeze: "layre1" is neither a layer of the body'),
        ("conv1,", 'freeze: "" is neither a layer of the body nor a share above 0 and up to 1. Layers: conv1, bn1, '),
        ("2", 'freeze: "2" is neither a layer of the body nor a share above 0'),
        ("conv", 'freeze: "conv" is neither a layer of the body (did you mean "conv1"?) nor'),
        ("1.5", 'freeze: "1.5" is neither a layer of the body nor a share'),
        ("0.0", 'freeze: "0.0" is neither a layer of the body nor a share'),
    ],
)
def test_mistakes(freeze: str, sentence: str) -> None:
    with pytest.raises(FedBMError) as caught:
        body_factory(ModelOptions(width=4, freeze=freeze), 1)()
    assert str(caught.value).startswith(sentence)


def test_a_phase_needs_something_to_train(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="fedrep has a phase that trains only the body, but .* freeze less of it"):
        plan_of(tiny, tmp_path, method="fedrep", freeze="1")
    assert plan_of(tiny, tmp_path, method="fedavg", freeze="1").id != plan_of(tiny, tmp_path, method="fedavg").id
