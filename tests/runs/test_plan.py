"""What a run's id depends on, methods and weights of the user's own, and finding a run again."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedbm
from fedbm.errors import FedBMError
from fedbm.methods import FedAvg, FedProx
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import check_config, make_config, to_sections, with_method


def run_id(flat: dict[str, Any], **more: Any) -> str:
    return make_plan(make_config(to_sections({**flat, **more}))).id


def test_what_a_run_is_called(tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path) -> None:
    first = run_id(tiny_fedbm)
    assert first.startswith("fedbm-scans-s0-")
    same_run: list[dict[str, Any]] = [
        {"device": "auto"},
        {"out": "elsewhere"},
        {"cache": str(tmp_path / "cache")},
        {"threads": 2},
        {"checkpoint_every": 7},
        {"normalise": "fixed"},
    ]
    for more in same_run:
        assert run_id(tiny_fedbm, **more) == first, more
    other_runs: list[dict[str, Any]] = [
        {"seed": 1},
        {"beta": 0.5},
        {"clients": 3},
        {"partition": "iid"},
        {"temperature": 3},
        {"generator": False},
        {"weighting": "equal"},
        {"lr": 0.02},
        {"rounds": 5},
        {"width": 8},
        {"size": 20},
        {"split_seed": 1},
        {"normalise": "own"},
        {"mean": "0.4", "std": "0.2"},
        {"data": "digits", "concept_file": ""},
    ]
    ids = [run_id(tiny_fedbm, **more) for more in other_runs] + [run_id(tiny), first]
    assert len(set(ids)) == len(ids)


def test_moved_data_are_the_same_data(tiny: dict[str, Any], scans: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(scans, tmp_path / "elsewhere" / scans.name)
    assert run_id(tiny, data=str(moved)) == run_id(tiny)
    next((moved / "cyst").iterdir()).unlink()
    assert run_id(tiny, data=str(moved)) != run_id(tiny)


def test_initial_weights_are_named_by_content(tiny: dict[str, Any], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    body = fedbm.ResNet18(1, 4)
    for name in ("a", "b"):
        save_file(body.state_dict(), tmp_path / f"{name}.safetensors")
    ids = {run_id(tiny, init_weights=str(tmp_path / f"{name}.safetensors")) for name in ("a", "b")}
    assert len(ids) == 1
    assert ids != {run_id(tiny)}
    with pytest.raises(FedBMError, match="init_weights: .* does not exist"):
        run_id(tiny, init_weights=str(tmp_path / "c.safetensors"))


def test_initial_weights_may_be_in_the_data_folder(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    def weights_of(name: str) -> str:
        flags = {**tiny, "data_dir": str(tmp_path / "data"), "init_weights": name}
        return make_plan(make_config(to_sections(flags))).config.model.init_weights

    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    save_file(fedbm.ResNet18(1, 4).state_dict(), tmp_path / "data" / "a.safetensors")
    assert weights_of("a.safetensors") == str(tmp_path / "data" / "a.safetensors")
    with pytest.raises(FedBMError, match=r"init_weights: b\.safetensors does not exist"):
        weights_of("b.safetensors")
    shutil.copy(tmp_path / "data" / "a.safetensors", tmp_path)
    assert weights_of("a.safetensors") == "a.safetensors"  # the path itself comes first


def test_a_method_object_carries_its_options(tiny: dict[str, Any]) -> None:
    free = {key: value for key, value in tiny.items() if key not in ("data", "method")}
    with pytest.raises(FedBMError, match="weighting is an option of a method. Set it where you make the fedavg object"):
        fedbm.simulate(tiny["data"], method=FedAvg(), weighting="equal", **free)
    with pytest.raises(FedBMError, match="mu is an option of a method. Set it where you make the fedavg object"):
        fedbm.simulate(tiny["data"], method=FedAvg(), mu=1, **free)
    with pytest.raises(FedBMError, match="method must be a name or an object like"):
        fedbm.simulate(tiny["data"], method=FedAvg, **free)  # type: ignore[arg-type]
    with pytest.raises(FedBMError, match='there is no method "fedavgg"'):
        fedbm.simulate(tiny["data"], method="fedavgg", **free)


@dataclass(frozen=True)
class Curious(FedAvg):
    """A method of the user's own, whose fields need not be options."""

    name: ClassVar[str] = "curious"

    layers: tuple[int, ...] = (1, 2)


def test_a_method_of_ones_own_may_have_fields_of_any_kind(tiny: dict[str, Any]) -> None:
    free = {key: value for key, value in tiny.items() if key != "method"}
    config = dataclasses.replace(make_config(to_sections(free)), method=Curious())
    check_config(config)
    assert make_plan(config).id.startswith("curious-scans-s0-")
    assert make_plan(dataclasses.replace(config, method=Curious(layers=(3,)))).id != make_plan(config).id


def test_a_method_of_ones_own_is_named_by_its_code_and_its_fields(tmp_path: Path) -> None:
    """Also one that is no dataclass, or holds a function; and the id is the same in another process."""
    from fedbm.runs.plan import make_plan
    from fedbm.runs.run_config import Config

    class Mine(fedbm.FedAvg):
        def __init__(self, scale: float) -> None:
            object.__setattr__(self, "scale", scale)
            object.__setattr__(self, "weighting", "size")
            object.__setattr__(self, "twist", lambda x: x)

    def id_of(method: fedbm.FedAvg) -> str:
        return make_plan(Config(method=method)).id

    assert id_of(Mine(1.0)) == id_of(Mine(1.0))
    assert id_of(Mine(1.0)) != id_of(Mine(0.0))


def test_code_typed_at_a_console_has_a_digest_too() -> None:
    from fedbm.utils.fingerprint import code_digest

    made = []
    for text in ("return x * 1", "return x * 2", "return x * 1"):
        space: dict[str, object] = {}
        exec(f"class K:\n    def f(self, x):\n        {text}\n", space)
        made.append(code_digest(space["K"]))
    assert made[0] == made[2] != made[1]


def test_data_changed_in_python_are_other_data(tiny: dict[str, Any]) -> None:
    """Labels made noisy, say: the id is that of what is learned from, not of what was loaded."""
    data = fedbm.load(tiny["data"], size=16)
    config = make_config(to_sections({key: value for key, value in tiny.items() if key not in ("data", "size")}))
    noisy = data.labels.copy()
    noisy[data.indices("train")[0]] = 1 - noisy[data.indices("train")[0]]
    ids = [make_plan(config, dataset=d).id for d in (data, dataclasses.replace(data, labels=noisy), data)]
    assert ids[0] == ids[2] != ids[1]


def test_a_partition_made_in_python_is_of_these_training_samples(tiny: dict[str, Any]) -> None:
    data = fedbm.load("digits")
    config = make_config(to_sections({"method": "fedavg"}))
    train, test = data.indices("train"), data.indices("test")

    def refuse(why: str, *clients: Any) -> None:
        with pytest.raises(FedBMError, match=why):
            make_plan(config, dataset=data, partition=fedbm.Partition(clients, "mine"))

    refuse(f"the partition assigns sample {test[0]}, which is not a training sample of digits", train, test)
    refuse("client 1 of the partition has no samples", train, train[:0])
    refuse("the partition assigns sample 5000, which is not a training sample of digits", train, [5000])
    refuse("the partition assigns sample -1", train, [-1])
    refuse(f"the partition contains sample {train[0]} more than once", train, train[:1])
    refuse("a partition needs a list of sample numbers for each client")
    few = make_plan(config, dataset=data, partition=fedbm.Partition((train[7:50], train[50:90]), "mine"))
    assert [len(client) for client in few.partition.clients] == [43, 40], "some may be left out on purpose"
    other = fedbm.load("digits", split_seed=1, split="stratified")
    dealt = fedbm.dirichlet(other.labels, other.indices("train"), 4, 0.5, seed=0)
    with pytest.raises(FedBMError, match="is not a training sample"):
        make_plan(config, dataset=data, partition=dealt)


def test_recommendations_go_by_the_beta_a_partition_was_dealt_with(tmp_path: Path) -> None:
    data = dataclasses.replace(fedbm.load("digits"), recommends={"temperature": {0.05: 17.5, 0.1: 7.5}})
    dealt = fedbm.dirichlet(data.labels, data.indices("train"), 10, 0.05, seed=0)
    plans = [
        make_plan(make_config(to_sections({"beta": 0.05})), dataset=data),
        make_plan(make_config({}), dataset=data, partition=dealt),
    ]
    path = tmp_path / "partition.json"
    path.write_text(json.dumps(dealt.to_json(data.labels, data.classes)))
    plans.append(make_plan(make_config(to_sections({"partition": "file", "partition_file": str(path)})), dataset=data))
    assert [plan.config.method.temperature for plan in plans] == [17.5] * 3
    assert len({plan.id for plan in plans}) == 1
    spoilt = {**dealt.to_json(data.labels, data.classes), "settings": {"beta": "much"}}
    path.write_text(json.dumps(spoilt))
    with pytest.raises(FedBMError, match="beta must be a number"):
        make_plan(make_config(to_sections({"partition": "file", "partition_file": str(path)})), dataset=data)


def test_options_of_a_method_object_are_what_they_declare(tiny: dict[str, Any]) -> None:
    def plan(method: Any) -> Any:
        return make_plan(with_method(make_config(to_sections({"rounds": 1})), method))

    assert plan(fedbm.FedBM(generator="no")).config.method.generator is False  # type: ignore[arg-type]
    assert plan(FedProx(mu=1)).id == plan(FedProx(mu=1.0)).id
    with pytest.raises(FedBMError, match="generator must be yes or no for fedbm"):
        plan(fedbm.FedBM(generator="perhaps"))  # type: ignore[arg-type]


def test_how_to_deal_can_be_named_from_python(tiny: dict[str, Any], tmp_path: Path) -> None:
    free = {key: value for key, value in tiny.items() if key not in ("data", "method", "beta")}
    run = fedbm.simulate(tiny["data"], "iid", "fedavg", out=tmp_path, **free)
    assert run.summary["partition"] == "iid"


def test_objects_of_the_wrong_kind_are_named(tiny: dict[str, Any], tmp_path: Path) -> None:
    from torch import nn

    class Bare(FedAvg):
        name: ClassVar[str] = "bare"

        def loss(self, *arguments: Any) -> Any:
            return super().loss(*arguments)["cross_entropy"]

    free = {key: value for key, value in tiny.items() if key not in ("data", "method")} | {"out": tmp_path}
    with pytest.raises(FedBMError, match="partition must be what a partitioner such as"):
        fedbm.simulate(tiny["data"], [[0, 1], [2]], **free)  # type: ignore[arg-type]
    bodies = {key: value for key, value in free.items() if key != "width"} | {"method": "fedavg"}
    same = nn.Flatten()
    with pytest.raises(FedBMError, match="body must be a function that makes the module"):
        fedbm.simulate(tiny["data"], body=nn.Flatten(), **bodies)
    with pytest.raises(FedBMError, match="body must be a function that returns a module, but it returned a NoneType"):
        fedbm.simulate(tiny["data"], body=lambda: None, **bodies)  # type: ignore[arg-type,return-value]
    with pytest.raises(FedBMError, match="body returned the same module twice"):
        fedbm.simulate(tiny["data"], body=lambda: same, **bodies)
    with pytest.raises(FedBMError, match="loss must return a dict of terms.* not a Tensor"):
        fedbm.simulate(tiny["data"], method=Bare(), **free)


def test_what_cannot_be_computed_here_is_said_before_anything_is_made(tiny: dict[str, Any], tmp_path: Path) -> None:
    free = {key: value for key, value in tiny.items() if key not in ("data", "out", "device", "engine")}
    with pytest.raises(FedBMError, match="engine = captured needs a CUDA device"):
        fedbm.simulate(tiny["data"], engine="captured", device="cpu", out=tmp_path / "runs", **free)
    assert not (tmp_path / "runs").exists()


def test_code_and_body_of_ones_own_stand_in_the_saved_configuration(tmp_path: Path) -> None:
    from fedbm.runs.run_config import read_sections

    run = fedbm.simulate("digits", method=Curious(), body=lambda: fedbm.ResNet18(1, 4), size=16, rounds=1, out=tmp_path)
    saved = read_sections(run.path / "config.toml")
    assert sorted(saved["own"]) == ["body", "code"]
    with pytest.raises(FedBMError, match="Use .* the command or script with the method or body of your own"):
        make_config(saved)
    assert fedbm.read_run(str(run.path)).id == run.id


def test_bodies_of_one_function_with_different_sizes_are_different_bodies() -> None:
    def recorded(width: int) -> str:
        return make_plan(make_config({}), make_body=lambda: fedbm.ResNet18(1, width)).custom_digests["body"]

    assert recorded(4) == recorded(4) != recorded(8)
