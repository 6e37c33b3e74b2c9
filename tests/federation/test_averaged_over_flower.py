"""The averaged model over Flower: its scores are those of the run in one process, whoever computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import deploy, digests_in_process, events_of, records_of
from test_contract import FEDERATED, settings_of

from fedbm.engine.checkpoint import load_tensors
from fedbm.errors import FedBMError
from fedbm.federation.federation_options import FederationOptions
from fedbm.federation.server.run_setup import agree
from fedbm.runs.plan import Plan
from fedbm.runs.run_config import make_config, to_sections
from fedbm.runs.runner import run_path

AVERAGED = [name for name in FEDERATED if name not in ("fedproto", "fedrep", "fedbn")]
SCORES = ("accuracy", "f1", "recall", "precision")


@pytest.fixture(scope="module", params=AVERAGED)
def in_process(
    request: Any, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Plan, list[str]]:
    """Settings of a run, its plan, and the digests of its server's states, played in this process."""
    settings = {**settings_of(request.param, tiny, tiny_fedbm), "server_average": 0.6}
    plan = deploy(tmp_path_factory.mktemp("in_process"), settings).plan
    return settings, plan, digests_in_process(plan)


@pytest.mark.parametrize("evaluate", ["server", "nodes"])
def test_in_process_is_flower(
    evaluate: str, in_process: tuple[dict[str, Any], Plan, list[str]], tmp_path: Path
) -> None:
    """Nodes share out all val and test images, so their matrices add up to those of one process; AUC is not told."""
    settings, plan, digests = in_process
    served = deploy(tmp_path, settings, {"evaluate": evaluate})
    served.serve()
    assert served.plan.id == plan.id
    states = [line["state"] for line in events_of(served.state, "round")]
    assert states == digests  # what is trained knows nothing of the average
    theirs, ours = records_of(served), records_of(plan)
    for side in ("val", "test"):
        for key in SCORES:
            for records in ((theirs, ours), ([r["averaged"] for r in theirs], [r["averaged"] for r in ours])):
                a, b = ([record[side][key] for record in some] for some in records)
                assert a == b, (side, key)
    assert any(record["averaged"]["val"] != record["val"] for record in ours)
    [folder] = (served.state / "runs").iterdir()
    a, b = (load_tensors(path / "averaged.safetensors")[0] for path in (folder, run_path(plan)))
    assert a.keys() == b.keys()
    assert all(a[name].equal(b[name]) for name in a)
    if evaluate == "nodes":
        assert [record["averaged"]["scored"] for record in theirs] == [[0, 1, 2]] * 3


def test_only_the_averaged_model_is_sent_in_addition(
    tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path
) -> None:
    """In each evaluation the averaged model travels first; the model itself stays with the node for the next round."""
    sent = []
    for decay in (0, 0.6):
        settings = {**settings_of("fedbm", tiny, tiny_fedbm), "server_average": decay}
        served = deploy(tmp_path / str(decay), settings, {"evaluate": "nodes"})
        served.serve()
        assert not events_of(served.state, "missed")
        parts = [part for line in events_of(served.state, "sent") if line["client"] == 0 for part in line["parts"]]
        sent.append({name: parts.count(name) for name in ("model", "generator", "concepts")})
    # after round 1 the average is the model itself
    assert sent[1] == {**sent[0], "model": sent[0]["model"] + 2}


@pytest.mark.parametrize("name", ["fedproto", "fedrep", "fedbn"])
def test_what_stays_with_clients_cannot_be_averaged(name: str, tiny: dict[str, Any]) -> None:
    config = make_config(
        {**to_sections({**tiny, "method": name, "server_average": 0.9}), "concepts": {"a": "a", "b": "b"}}
    )
    with pytest.raises(FedBMError, match=f"^{name} has no common model"):
        agree(config, FederationOptions())
