"""The averaged model: its formula by hand, and runs that have one train, resume and record as those without."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_resume import OwnNorm
from whole_runs import after_round, assert_same_run, assert_same_tensors, folder_of, play, records_of
from whole_runs import small_plan_of as plan_of

from fedbm.engine import round_loop
from fedbm.engine.checkpoint import load_tensors
from fedbm.engine.run_folder import RunFolder
from fedbm.engine.server_average import ServerAverage, restore_average
from fedbm.errors import FedBMError
from fedbm.runs import runner
from fedbm.runs.run_file_writer import finish_simulation
from fedbm.runs.run_record import read_record, write_record
from fedbm.runs.run_view import read_run

DECAY = 0.6  # from round 3 on below (t − 1)/t, so that short runs see both halves of the rule


def averaged(decay: float, *states: dict[str, Any]) -> dict[str, torch.Tensor]:
    average = ServerAverage(decay)
    for state in states:
        average.add({name: torch.as_tensor(value) for name, value in state.items()})
    return average.state()


@pytest.mark.parametrize(("decay", "expected"), [(0.9, [8, 4, 8 / 3, 2]), (0.5, [8, 4, 2, 1])])
def test_weights_by_hand(decay: float, expected: list[float]) -> None:
    """Models 8, 0, 0, 0. a = 0, 1/2, 2/3, 3/4 below d = 0.9: their mean. With d = 0.5: a = 0, 1/2, 1/2, 1/2."""
    average = ServerAverage(decay)
    found = []
    for value in (8.0, 0.0, 0.0, 0.0):
        average.add({"w": torch.tensor([value])})
        found.append(float(average.state()["w"]))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("decay", "mean", "variance"), [(0.9, 8 / 3, 35 / 9), (0.5, 3.0, 3.5)])
def test_batch_norm_by_hand(decay: float, mean: float, variance: float) -> None:
    """Means 1, 3, 4 and variances 2, 4, 1, so second moments 3, 13, 17.

    d = 0.9, plain means: m̄ = 8/3, avg(v + m²) = 33/3 = 11, v̄ = 11 − 64/9 = 35/9.
    d = 0.5: after two rounds 2 and 8; then m̄ = (2 + 4)/2 = 3, (8 + 17)/2 = 12.5, v̄ = 12.5 − 9 = 3.5.
    The mean of the variances would be 7/3 and 2.
    """
    found = averaged(
        decay,
        *(
            {"bn.running_mean": [m], "bn.running_var": [v], "bn.num_batches_tracked": count}
            for m, v, count in ((1.0, 2.0, 10), (3.0, 4.0, 30), (4.0, 1.0, 20))
        ),
    )
    assert float(found["bn.running_mean"]) == pytest.approx(mean)
    assert float(found["bn.running_var"]) == pytest.approx(variance)
    assert int(found["bn.num_batches_tracked"]) == 20  # the latest
    assert {value.dtype for value in found.values()} == {torch.float32, torch.int64}


def test_a_small_variance_far_from_zero_is_kept() -> None:
    """m = 1000, v = 0.01: in float32 m² = 10⁶ has steps of 1/16, and nothing would be left of v."""
    state = {"bn.running_mean": [1000.0], "bn.running_var": [0.01]}
    assert float(averaged(0.9, *[state] * 50)["bn.running_var"]) == pytest.approx(0.01, rel=1e-4)
    assert float(averaged(0.9, *[{**state, "bn.running_var": [0.0]}] * 50)["bn.running_var"]) >= 0


def test_memory_layout_and_a_break_change_no_bit() -> None:
    """A checkpoint is read into contiguous memory, a captured model is not contiguous."""
    rng = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(5, 3, 3, 3, generator=rng), "running": torch.tensor(t)} for t in range(6)]
    whole, broken = ServerAverage(0.8), ServerAverage(0.8)
    for state in models:
        whole.add(state)
        broken.add({**state, "w": state["w"].to(memory_format=torch.channels_last)})
        saved = {name: value.clone(memory_format=torch.contiguous_format) for name, value in broken.saved().items()}
        own, restored = restore_average({"server": state["w"], **saved}, 0.8)
        assert restored is not None
        assert list(own) == ["server"]
        broken = restored
    assert torch.equal(whole.state()["w"], broken.state()["w"])
    assert models[0]["w"].ne(whole.state()["w"]).any()


def play_and_average(settings: dict[str, Any], out: Path, **more: Any) -> tuple[Path, list[dict[str, Any]]]:
    """A run with its common state of every round."""
    plan = plan_of(settings, out, **more)
    folder = RunFolder(folder_of(plan))
    folder.path.mkdir(parents=True)
    federation = runner.prepare_round_loop(plan, folder, torch.device("cpu"))
    states = []
    for event in federation.rounds():
        if event is not None and event.record is not None:
            found = federation.common_state()
            assert found is not None
            states.append({name: value.double().numpy().copy() for name, value in found.items()})
    finish_simulation(plan, federation)
    return folder.path, states


@pytest.mark.parametrize("name", ["central", "fedavg", "scaffold", "fedrep", "fedrod", "fedbm"])
def test_a_run_only_gains_scores(name: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path) -> None:
    settings = tiny_fedbm if name == "fedbm" else {**tiny, "method": name}
    plain = plan_of(settings, tmp_path)
    play(plain)
    folder, states = play_and_average(settings, tmp_path, server_average=DECAY)

    without, raw = folder_of(plain), records_of(folder / "rounds.jsonl")
    scores = [record.pop("averaged") for record in raw]
    assert raw == records_of(without / "rounds.jsonl")
    assert_same_tensors_but_for_run(without / "model.safetensors", folder / "model.safetensors")
    assert [list(found) for found in scores] == [["val", "test"]] * len(states)
    assert scores[0]["test"] == raw[0]["test"]  # in round 1 the average is the model itself
    assert any(found["test"] != record["test"] for found, record in zip(scores, raw, strict=True))

    run, other = read_run(folder), read_run(without)
    assert run.summary is not None
    assert other.summary is not None
    assert run.summary["averaged"] == {"round": len(states), **scores[-1]["test"]}
    assert other.summary["averaged"] is None
    assert not (without / "averaged.safetensors").exists()
    tensors, notes = load_tensors(folder / "averaged.safetensors")
    assert notes["round"] == len(states)
    for key, value in expected_average(states).items():
        assert np.allclose(tensors[key].double().numpy(), value, rtol=1e-5, atol=1e-6), key


def assert_same_tensors_but_for_run(left: Path, right: Path) -> None:
    (a, notes), (b, others) = load_tensors(left), load_tensors(right)
    assert {**notes, "run": ""} == {**others, "run": ""}
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def expected_average(states: list[dict[str, Any]]) -> dict[str, Any]:
    """By the weights each round has in the end: w_t = (1 − a_t) Π_{s>t} a_s."""
    keep = [min(DECAY, (t - 1) / t) for t in range(1, len(states) + 1)]
    weights = [(1 - keep[t]) * float(np.prod(keep[t + 1 :])) for t in range(len(keep))]
    assert sum(weights) == pytest.approx(1)

    def mean(values: list[Any]) -> Any:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    found = {}
    for name in states[0]:
        if name.endswith("num_batches_tracked") or name == "generator_round":
            found[name] = states[-1][name]
        elif name.endswith(".running_var"):
            means = name.replace("_var", "_mean")
            found[name] = mean([s[name] + s[means] ** 2 for s in states]) - mean([s[means] for s in states]) ** 2
        else:
            found[name] = mean([state[name] for state in states])
    return found


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "fedbm"])
@pytest.mark.parametrize("every", [1, 2])
def test_resumed_is_uninterrupted(
    name: str, every: int, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    settings = tiny_fedbm if name == "fedbm" else {**tiny, "method": name}
    more = {"server_average": DECAY, "checkpoint_every": every, "evaluate_every": every}
    whole, broken = (plan_of(settings, tmp_path / out, **more) for out in ("whole", "broken"))
    play(whole)
    play(broken, until=lambda event: event.phase == "aggregate")  # no checkpoint yet
    play(broken, until=after_round(1))
    play(broken, until=lambda event: event.round == 2 and event.phase == "evaluate")  # averaged in, not yet scored
    play(broken, until=after_round(3))
    play(broken, until=lambda event: event.round == 4 and event.phase == "train" and event.done == 1)
    play(broken)
    assert_same_run(folder_of(whole), folder_of(broken))
    assert_same_tensors(*(folder_of(plan) / "averaged.safetensors" for plan in (whole, broken)))


@pytest.mark.parametrize("last", [2, 4])
def test_stopped_between_a_line_and_its_checkpoint(
    last: int, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = (plan_of(tiny, tmp_path / out, server_average=DECAY, checkpoint_every=1) for out in ("whole", "b"))
    play(whole)
    save = round_loop.save_checkpoint

    def stop(*given: Any) -> None:
        if given[-1].round == last:
            raise FedBMError("stopped")
        save(*given)

    with monkeypatch.context() as patch:
        patch.setattr(round_loop, "save_checkpoint", stop)
        with pytest.raises(FedBMError, match="stopped"):
            play(broken)
    lines = (folder_of(broken) / "rounds.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["round"] == last
    play(broken)
    assert_same_run(folder_of(whole), folder_of(broken))


def test_only_finishing_is_left_to_do(tiny: dict[str, Any], tmp_path: Path) -> None:
    whole, broken = (plan_of(tiny, tmp_path / out, server_average=DECAY) for out in ("whole", "broken"))
    play(whole)
    play(broken, until=after_round(4))
    assert not (folder_of(broken) / "averaged.safetensors").exists()
    assert play(broken) == []
    assert_same_run(folder_of(whole), folder_of(broken))


@pytest.mark.parametrize("settings", [{"method": "fedproto"}, {"method": "fedrep", "common_head": "vote"}])
def test_without_a_common_model_it_is_refused(settings: dict[str, Any], tiny: dict[str, Any], tmp_path: Path) -> None:
    plan_of(tiny, tmp_path, **settings)
    with pytest.raises(FedBMError, match=f"^{settings['method']} has no common model"):
        plan_of(tiny, tmp_path, **settings, server_average=0.9)


def test_a_method_that_claims_a_common_model_is_found_out(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="^ownnorm has no common model"):
        play(plan_of(tiny, tmp_path, own=OwnNorm(), server_average=0.9))


@pytest.mark.parametrize(("given", "why"), [(1, "be below 1, not 1"), (-0.1, "be at least 0, not -0.1")])
def test_the_decay_is_below_one(given: float, why: str, tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match=f"^server_average must {why}$"):
        plan_of(tiny, tmp_path, server_average=given)


def test_off_is_no_part_of_the_id(tiny: dict[str, Any], tmp_path: Path) -> None:
    ids = [plan_of(tiny, tmp_path, **more).id for more in ({}, {"server_average": 0}, {"server_average": 0.9})]
    assert ids[0] == ids[1] != ids[2]


def test_a_record_keeps_the_averaged_scores(tiny: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(tiny, tmp_path, server_average=DECAY, rounds=8)
    play(plan)
    run = read_run(folder_of(plan))
    write_record(run, tmp_path / f"{run.id}.json")
    again = read_record(tmp_path / f"{run.id}.json")
    assert run.summary is not None
    assert run.details is not None
    assert again.scores("averaged") == run.scores("averaged") == run.summary["averaged"]
    late = [record["averaged"]["test"]["f1"] for record in run.rounds[6:]]
    assert again.scores("averaged_last_quarter") == run.averaged_last_quarter
    assert run.averaged_last_quarter is not None
    assert run.averaged_last_quarter["f1"] == pytest.approx(np.mean(late))
    assert run.averaged_last_quarter != run.last_quarter
    for side in ("val", "test"):
        for name in ("accuracy", "f1"):
            kept = [record["averaged"][side][name] for record in again.rounds]
            assert kept == [round(record["averaged"][side][name], 5) for record in run.rounds]
    assert np.sum(run.details["confusion"]["averaged"]) == np.sum(run.details["confusion"]["last"])


def test_no_average_no_keys(tiny: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(tiny, tmp_path)
    play(plan)
    run = read_run(folder_of(plan))
    assert all("averaged" not in record for record in records_of(folder_of(plan) / "rounds.jsonl"))
    assert run.scores("averaged") is run.scores("averaged_last_quarter") is None
    write_record(run, tmp_path / f"{run.id}.json")
    assert "averaged_last_quarter" not in (tmp_path / f"{run.id}.json").read_text()
    assert all(record["averaged"] is None for record in read_record(tmp_path / f"{run.id}.json").rounds)


def test_between_evaluations_rounds_are_averaged_too(tiny: dict[str, Any], tmp_path: Path) -> None:
    plans = [plan_of(tiny, tmp_path / str(every), server_average=DECAY, evaluate_every=every) for every in (1, 2)]
    for plan in plans:
        play(plan)
    often, seldom = (records_of(folder_of(plan) / "rounds.jsonl") for plan in plans)
    assert [record["averaged"] is None for record in seldom] == [True, False, True, False]
    assert seldom[3]["averaged"] == often[3]["averaged"]
    assert any(a["averaged"] != b["averaged"] for a, b in pairwise(often))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", ["fedavg", "fedbm"])
def test_captured_is_the_plain_loop_to_rounding(
    name: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**(tiny_fedbm if name == "fedbm" else tiny), "device": "cuda", "precision": "fp32", "lr": 0.001}
    more = {"server_average": DECAY, "rounds": 3}
    plans = [plan_of(settings, tmp_path / kind, engine=kind, **more) for kind in ("reference", "captured")]
    for plan in plans:
        play(plan)
    plain, captured = (load_tensors(folder_of(plan) / "averaged.safetensors")[0] for plan in plans)
    assert plain.keys() == captured.keys()
    for key, value in plain.items():
        if not key.startswith("generator."):  # its Adam steps on rounding at this size
            assert torch.allclose(value.double(), captured[key].double(), rtol=1e-3, atol=2e-4), key
