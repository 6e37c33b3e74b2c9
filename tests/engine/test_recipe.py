"""The training recipe: optimisers, learning-rate schedules, label smoothing, early stopping."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from small import task
from test_local import facts, samples
from whole_runs import after_round, assert_same_run, folder_of, play
from whole_runs import small_plan_of as plan_of

from fedbm.config.options import RECIPES, TrainOptions
from fedbm.engine import evaluate, round_record
from fedbm.engine.local_training import learning_rate, train_client
from fedbm.errors import FedBMError
from fedbm.methods import METHODS, FedAvg
from fedbm.report.write import write_report
from fedbm.runs.run_config import check_config, make_config, recommend, to_toml
from fedbm.runs.run_record import read_record, write_record
from fedbm.runs.run_view import read_run
from fedbm.utils.seeds import torch_rng


def rates(rounds: int, **options: Any) -> list[float]:
    train = TrainOptions(lr=1.0, rounds=rounds, **options)
    return [learning_rate(train, round_, 0) for round_ in range(1, rounds + 1)]


def test_cosine_over_all_rounds() -> None:
    assert rates(4, lr_schedule="cosine") == pytest.approx(
        [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    )


def test_warm_up_rises_to_the_full_rate_and_the_schedule_follows() -> None:
    assert rates(5, lr_schedule="cosine", warmup_rounds=2) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.25])
    assert rates(4, lr_decay=0.5, warmup_rounds=1) == pytest.approx([0.5, 0.5, 0.25, 0.125])
    assert rates(3, lr_schedule="cosine", warmup_rounds=9) == pytest.approx([1 / 3, 2 / 3, 1.0])  # a short run
    assert rates(1, lr_schedule="cosine", warmup_rounds=9) == [1.0]


def test_a_step_of_adamw_with_smoothed_labels_by_hand() -> None:
    """Written out with torch: the target is (1 − ε) · one-hot + ε/K, and the decay does not pass through Adam."""
    train = TrainOptions(optimizer="adamw", lr=0.01, weight_decay=0.1, batch=11, label_smoothing=0.2)
    method, data = FedAvg(), samples()
    model = method.model(task())
    upload, _ = train_client(method, model, task(), train, 1, facts(data), data, method.server_init(model), {})

    plain = method.model(task()).train()
    order = torch.randperm(11, generator=torch_rng(0, "client", 1, 0, 0, 0, "order"))
    images = ((data.images[order].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25).squeeze(1).unsqueeze(1)
    target = 0.8 * torch.nn.functional.one_hot(data.labels[order], 3) + 0.2 / 3
    loss = -(target * plain(images).log_softmax(dim=1)).sum(dim=1).mean()
    loss.backward()
    assert upload.losses["cross_entropy"] == pytest.approx(loss.item(), abs=1e-6)
    for name, p in plain.named_parameters():
        first = p.detach() * (1 - 0.01 * 0.1) - 0.01 * p.grad / (p.grad.abs() + 1e-8)  # both moments corrected
        close = (upload.state[name] - first).abs() < 1e-5
        assert bool((close | (p.grad.abs() < 1e-6)).all()), name  # there Adam steps on rounding


@pytest.mark.parametrize("name", METHODS)
def test_only_methods_with_fedavgs_loss_smooth_labels(name: str) -> None:
    config = make_config({"method": {"name": name}, "train": {"label_smoothing": 0.1}})
    if name in ("moon", "fedlc", "fedntd", "fedgen", "fedrod", "fedproto", "fedetf", "fedbm"):
        with pytest.raises(FedBMError, match=f"label_smoothing changes FedAvg's cross-entropy, but {name} has a loss"):
            check_config(config)
    else:
        check_config(config)
        assert config.train.label_smoothing == 0.1


@pytest.fixture
def rising_then_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation rises until round 2; the score depends on the round alone, so that a resumed run sees the same."""
    monkeypatch.setattr(evaluate, "_score", with_rank(evaluate._score))
    monkeypatch.setattr(round_record, "selection_score", lambda val: val["auc"])


def with_rank(real: Any) -> Any:
    def score(loop: Any, round_: int, averaged: Any = None) -> Any:
        found = yield from real(loop, round_, averaged)
        found.val["auc"] = min(round_, 2) / 10
        return found

    return score


PATIENT = {"rounds": 9, "patience": 2}


@pytest.mark.usefixtures("rising_then_flat")
def test_patience_ends_a_run_and_says_why(tiny: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(tiny, tmp_path, **PATIENT, method="fedrep")
    events = play(plan)
    run = read_run(folder_of(plan))
    assert [record.round for record in run.rounds] == [1, 2, 3, 4]
    assert [event.last for event in events if event.record] == [False, False, False, True]
    why = "the run ends here: no better validation score since round 2 (patience = 2)"
    assert run.rounds[-1].notes == (why,)
    assert why in [event.note for event in events]
    assert (run.summary["rounds"], run.summary["best"]["round"], run.summary["last"]["round"]) == (4, 2, 4)
    assert run.summary["personal"]["last"] is not None, "the last round scores personal models"
    assert (run.finished, run.planned, run.final_round) == (True, 9, 4)
    assert run.last_quarter == run.rounds[-1].test
    write_record(run, tmp_path / f"{run.id}.json")
    kept = read_record(tmp_path / f"{run.id}.json")
    assert (kept.planned, kept.final_round, [record.round for record in kept.rounds]) == (9, 4, [1, 2, 3, 4])
    page = write_report([folder_of(plan)], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "rounds planned: 9, run: 4" in page


@pytest.mark.usefixtures("rising_then_flat")
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_patient_run_resumes_to_the_same_end(stop: int, tiny: dict[str, Any], tmp_path: Path) -> None:
    whole, broken = (plan_of(tiny, tmp_path / out, **PATIENT, checkpoint_every=9) for out in ("whole", "broken"))
    play(whole)
    play(broken, until=after_round(stop))
    assert not (folder_of(broken) / "summary.json").exists()
    play(broken)
    assert_same_run(folder_of(whole), folder_of(broken))


@pytest.mark.usefixtures("rising_then_flat")
def test_a_run_ends_only_after_an_evaluation(tiny: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(tiny, tmp_path, rounds=9, patience=1, evaluate_every=2)
    play(plan)
    run = read_run(folder_of(plan))
    assert [record.round for record in run.rounds if record.val] == [2, 4]
    assert run.summary["rounds"] == 4


def test_a_recipe_sets_what_the_user_did_not_set(tiny: dict[str, Any], tmp_path: Path) -> None:
    """The id depends on the values: whoever writes them out finds the same run."""
    modern = plan_of(tiny, tmp_path, recipe="modern", lr=0.01)
    assert modern.notes[-1] == (
        "recipe modern sets optimizer = adamw, weight_decay = 0.05, lr_schedule = cosine, warmup_rounds = 5 and "
        "augment = standard"
    )
    written = plan_of(tiny, tmp_path, **{**RECIPES["modern"], "lr": 0.01})
    assert modern.id == written.id != plan_of(tiny, tmp_path).id == plan_of(tiny, tmp_path, recipe="paper").id
    again = make_config(tomllib.loads(to_toml(modern.config)))
    assert again.train == modern.config.train
    assert not any("recipe" in note for note in written.notes)


def test_a_recipe_wins_over_recommendations() -> None:
    config = make_config({"train": {"recipe": "modern"}})
    assert recommend(config, {"lr": 0.5, "epochs": 7}).train.lr == RECIPES["modern"]["lr"]
    assert recommend(config, {"lr": 0.5, "epochs": 7}).train.epochs == 7


def test_the_documented_recipe_is_the_one_that_is_set() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = text.partition("| `--recipe modern` | value |\n| --- | --- |\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| `{key}` | {value} |" for key, value in RECIPES["modern"].items()]


def test_defaults_do_not_enter_the_run_id(tiny: dict[str, Any], tmp_path: Path) -> None:
    default = {"lr_schedule": "exponential", "warmup_rounds": 0, "label_smoothing": 0, "patience": 0}
    changed = {"lr_schedule": "cosine", "warmup_rounds": 1, "label_smoothing": 0.1, "patience": 1}
    ids = [plan_of(tiny, tmp_path, **more).id for more in ({}, default, *({k: v} for k, v in changed.items()))]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 1 + len(changed)
