"""In one process or over Flower: the same server state after every round, bit for bit, for every federated method."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from one_process import Deployed, deploy, digests_in_process, events_of, records_of

from fedbm.federation.audit import verify
from fedbm.methods import METHODS
from fedbm.runs import run_file_writer
from fedbm.runs.run_view import read_run
from fedbm.utils.io import read_json

FEDERATED = [name for name in METHODS if name != "central"]


def settings_of(name: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any]) -> dict[str, Any]:
    base = tiny_fedbm if name == "fedbm" else {**tiny, "method": name}
    if name == "fedglcl":
        base["concept_file"] = tiny_fedbm["concept_file"]
    return {**base, "clients": 3, "rounds": 3, "participation": 0.7, "beta": 0.5, "keep_optimizer": name == "scaffold"}


@pytest.fixture(scope="module", params=FEDERATED)
def served(
    request: Any, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Deployed:
    deployed = deploy(tmp_path_factory.mktemp(request.param), settings_of(request.param, tiny, tiny_fedbm))
    deployed.serve()
    return deployed


def test_in_process_is_flower(served: Deployed) -> None:
    states = [line["state"] for line in events_of(served.state, "round")]
    assert states == digests_in_process(served.plan)
    assert len(set(states)) == 3

    method = served.plan.config.method
    theirs, ours = records_of(served), records_of(served.plan)
    for key in ("round", "lr", "selected", "loss", "dropped", "generator"):
        assert [record[key] for record in theirs] == [record[key] for record in ours], key
    for record in (*theirs, *ours):
        for entry in record["clients"]:
            del entry["seconds"]
    assert [record["clients"] for record in theirs] == [record["clients"] for record in ours]
    if method.name not in ("fedproto", "fedrep", "fedbn"):  # their score is made of clients' own models: nodes give it
        assert [record["test"] for record in theirs] == [record["test"] for record in ours]


def test_in_process_is_flower_with_frozen_batch_norm(tiny_fedbm: dict[str, Any], tmp_path: Path) -> None:
    """The terms carry both options, and a node knows the round from the request."""
    settings = settings_of("fedbm", {}, tiny_fedbm) | {"pseudo_in": "statistics", "freeze_batchnorm_after": 2}
    served = deploy(tmp_path, settings)
    served.serve()
    states = [line["state"] for line in events_of(served.state, "round")]
    assert states == digests_in_process(served.plan)
    thawed = deploy(tmp_path / "thawed", settings | {"freeze_batchnorm_after": 0})
    others = digests_in_process(thawed.plan)
    assert [a == b for a, b in zip(states, others, strict=True)] == [True, True, False]


def test_generated_images_are_drawn_after_the_same_rounds(
    tiny_fedbm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file_writer, "DRAWN_ROUNDS", (2,))
    served = deploy(tmp_path, settings_of("fedbm", {}, tiny_fedbm))
    served.serve()
    assert [line["state"] for line in events_of(served.state, "round")] == digests_in_process(served.plan)
    [folder] = (served.state / "runs").iterdir()
    assert [path.name for path in (folder / "generated").iterdir()] == ["2.png"]


RECIPE = {"recipe": "modern", "lr": 0.001, "warmup_rounds": 1, "freeze": "conv1,bn1"}


TIMM = {"method": "fedavg", "body": "timm:test_efficientnet", "freeze": "conv_stem,bn1"}
NEEDS_TIMM = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed (the extra timm)")


@pytest.mark.parametrize(
    "more",
    [{"method": "fedavg", "label_smoothing": 0.1}, {"method": "scaffold"}, {}, pytest.param(TIMM, marks=NEEDS_TIMM)],
)
def test_in_process_is_flower_with_every_option_of_the_recipe(
    more: dict[str, Any], tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    served = deploy(tmp_path, settings_of(more.get("method", "fedbm"), tiny, tiny_fedbm) | RECIPE | more)
    served.serve()
    states = [line["state"] for line in events_of(served.state, "round")]
    assert states == digests_in_process(served.plan)
    assert len(set(states)) == 3
    for client in range(3):
        sent = [line["parts"] for line in events_of(served.state, "sent") if line["client"] == client]
        assert sum("frozen" in parts for parts in sent) <= 1


def test_patience_ends_a_deployment(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is learnt at this rate, so no evaluation is better than the first."""
    still = {"lr": 1e-30, "freeze": "1"}
    settings = settings_of("fedavg", tiny, {}) | still | {"rounds": 9, "patience": 2, "evaluate_every": 2}
    served = deploy(tmp_path, settings)
    served.serve()
    [folder] = (served.state / "runs").iterdir()
    assert read_run(folder).summary["rounds"] == 4
    status = read_json(served.state / "status.json")
    assert (status["phase"], status["round"], status["rounds"]) == ("finished", 4, 4)
    played = [line["state"] for line in events_of(served.state, "round")]
    assert played == digests_in_process(served.plan)


def test_nothing_is_sent_twice(served: Deployed) -> None:
    """A piece whose digest a node holds stays away: frozen ones travel once, the generator when it changed."""
    assert not events_of(served.state, "missed")
    for client in range(3):
        sent = [line["parts"] for line in events_of(served.state, "sent") if line["client"] == client]
        pairs = [(name, digest) for pieces in sent for name, digest in pieces.items()]
        assert len(set(pairs)) == len(pairs)
        for frozen in ("concepts", "task.concepts", "frame", "text"):
            assert sum(name == frozen for name, _ in pairs) <= 1


def test_what_leaves_a_site_is_what_the_method_declares(served: Deployed) -> None:
    shares = served.plan.config.method.shares
    for line in events_of(served.state, "joined"):
        assert ("label_counts" in line["fields"]) == ("label_counts" in shares)
    for client in range(3):
        [line] = events_of(served.folder / f"node-{client}", "census")
        assert ("label_counts" in line["fields"]) == ("label_counts" in shares)
    assert len(verify(served.state / "audit.jsonl").lines) > 10


def test_the_run_is_left_as_any_run_is(served: Deployed) -> None:
    [folder] = (served.state / "runs").iterdir()
    run = read_run(folder)
    assert run.finished
    assert (run.partition, run.clients) == ("nodes", 3)
    assert (folder / "model.safetensors").is_file()
    assert not list(folder.glob("clients/*"))  # clients' states stay with them


def test_no_client_state_reaches_the_server(served: Deployed) -> None:
    kept = {path.name for client in range(3) for path in (served.folder / f"node-{client}").rglob("clients/*")}
    method = served.plan.config.method.name
    assert bool(kept) == (method in ("scaffold", "feddyn", "moon", "fedproto", "fedrep", "fedbn", "fedrod"))


def test_the_servers_optimiser_over_flower(tiny: dict[str, Any], tmp_path: Path) -> None:
    """It runs at the server alone: nodes receive what they receive without it."""
    settings = {**settings_of("fedavg", tiny, {}), "server_optimizer": "yogi", "server_lr": 0.01}
    served = deploy(tmp_path, settings)
    served.serve()
    assert [line["state"] for line in events_of(served.state, "round")] == digests_in_process(served.plan)
    plain = deploy(tmp_path / "plain", settings_of("fedavg", tiny, {}))
    plain.serve()
    sent, usual = ({tuple(line["parts"]) for line in events_of(run.state, "sent")} for run in (served, plain))
    assert sent == usual
