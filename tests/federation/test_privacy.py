"""The noise cannot be removed, no update exceeds the clip, ε is right, and nothing exact leaves alongside."""

from __future__ import annotations

import json
import random
import re
import secrets
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from one_process import Deployed, deploy, events_of, records_of
from torch import Tensor

from fedbm.errors import FedBMError
from fedbm.federation.node.handler import answer
from fedbm.federation.node.privacy import SIGMA, clip_to_grid, epsilon, privatise
from fedbm.federation.protocol.flower_records import Envelope
from fedbm.federation.protocol.packing import pack
from fedbm.federation.protocol.reply_checks import read_upload

SEED = 123_456_789


def seeded_noise(upload: Tensor, received: Tensor, seed: int) -> Tensor:
    """A mechanism whose noise comes from a seeded generator; z = C = 1."""
    gap = (upload - received).double()
    noise = torch.randn(upload.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (received + gap / max(1.0, float(gap.norm())) + noise).float()


def try_seeds(sent: Tensor, received: Tensor) -> list[int]:
    """The attack: the seeds around SEED whose noise leaves an update within the clip; |u| ≤ 1 for every number."""
    found = []
    for seed in range(SEED - 2**11, SEED + 2**11):
        noise = torch.randn(sent.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if float((sent.double() - received - noise).abs().max()) <= 1:
            found.append(seed)
    return found


def test_noise_cannot_be_removed_by_trying_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: SEED)
    received, upload = torch.linspace(-1, 1, 64), torch.linspace(2, -3, 64)
    assert try_seeds(seeded_noise(upload, received, SEED), received) == [SEED]
    torch.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 (the generator that such a seed would set)
    random.seed(SEED)
    sent = privatise({"w": upload}, {"w": received}, clip=1.0, noise=1.0)["w"]
    assert try_seeds(sent, received) == []


def test_equal_seeds_give_different_noise() -> None:
    zero = {"w": torch.zeros(100)}

    def draw() -> Tensor:
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002 (as above)
        random.seed(7)
        return privatise(zero, zero, clip=1.0, noise=1.0)["w"]

    assert not bool((draw() == draw()).any())


def test_clipping_by_hand() -> None:
    """u = (3, 4) has norm 5; clipped to 1 it is (0.6, 0.8), less one part in a million for rounding errors."""
    received = {"w": torch.tensor([1.0, 1.0]), "n": torch.tensor(3)}
    received["v"] = torch.tensor(100.0)  # of another shape, so that v counts from 0
    upload = {"w": torch.tensor([4.0, -3.0]), "n": torch.tensor(7), "v": torch.tensor([0.0])}
    found = clip_to_grid(upload, received, clip=1.0, step=1e-9)
    assert found["w"] / 1e9 == pytest.approx([0.6, -0.8], rel=2e-6)
    assert found["v"].tolist() == [0]
    assert sorted(found) == ["v", "w"]
    assert clip_to_grid(upload, received, clip=6.0, step=0.7)["w"].tolist() == [4, -5]  # 4.29, −5.71: towards zero


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.floats(1e-9, 1e9),
    st.floats(1e-6, 1e6),
)
def test_no_update_exceeds_the_clip(numbers: list[float], clip: float, noise: float) -> None:
    """Computed in whole numbers: ‖m‖² ≤ (C/g)² = (2^24/z)²."""
    steps = clip_to_grid({"w": torch.tensor(numbers)}, {}, clip, noise * clip / SIGMA)["w"]
    assert sum(int(m) ** 2 for m in steps) <= (SIGMA / Fraction(noise)) ** 2


def test_what_leaves_is_on_the_grid_and_has_the_spread_that_is_asked_for() -> None:
    zero = {"w": torch.zeros(400, 500, dtype=torch.float64)}
    step = 2.0 * 0.5 / SIGMA
    found = privatise(zero, zero, clip=0.5, noise=2.0)["w"]
    assert torch.equal(torch.round(found / step) * step, found)
    assert float(found.std()) == pytest.approx(1.0, rel=0.02)
    upload = {"w": torch.full((400, 500), 3.0), "n": torch.tensor(7)}
    found = privatise(upload, {"w": torch.ones(400, 500)}, clip=1000.0, noise=1e-3)  # 2 everywhere has norm 894
    assert found["w"].dtype == torch.float32
    assert float(found["w"].mean()) == pytest.approx(3.0, abs=0.02)
    assert float(found["w"].std()) == pytest.approx(1.0, rel=0.02)
    assert int(found["n"]) == 7


def test_single_numbers_and_half_precision_get_noise_too() -> None:
    upload = {"one": torch.tensor(0.5), "half": torch.zeros(2, 3, dtype=torch.bfloat16), "none": torch.zeros(0)}
    found = privatise(upload, {}, clip=1.0, noise=1.0)
    assert {name: (v.dtype, v.shape) for name, v in found.items()} == {n: (v.dtype, v.shape) for n, v in upload.items()}
    assert float(found["one"]) != 0.5
    assert bool((found["half"] != 0).all())


def test_an_update_that_is_not_finite_cannot_be_clipped() -> None:
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(FedBMError, match="not finite"):
            privatise({"w": torch.tensor([1.0, wrong])}, {}, clip=1.0, noise=1.0)


def test_a_variance_that_noise_or_rounding_took_below_zero_is_read_as_zero() -> None:
    """Its root is no number, and one such channel is the end of every score. Other numbers may be negative."""
    name = "body.bn1.running_var"
    sent = {name: torch.tensor([1.0, 1.0]), "w": torch.tensor([1.0])}
    noised = {name: torch.tensor([-0.5, 0.5]), "w": torch.tensor([-0.5])}
    found, _ = read_upload(pack(noised), sent, sent, max_norm=10.0)
    assert (found[name].tolist(), found["w"].tolist()) == ([0.0, 0.5], [-0.5])
    sent[name] = torch.tensor([0.99, 1.0])
    small = {name: torch.tensor([1e-6, 1.0]), "w": torch.tensor([1.0])}  # −0.989999 is −0.990234 in 16 bits
    found, _ = read_upload(pack(small, "delta", sent), sent, sent, max_norm=10.0)
    assert found[name].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("noise", "releases", "delta", "expected"),
    [
        (1.0, 1, 1e-5, 4.7284),
        (1.0, 50, 1e-5, 57.2531),
        (1.0, 200, 1e-5, 165.6219),
        (20.0, 200, 1e-5, 3.1890),
        (4.0, 1, 1e-3, 0.6880),  # as OpenDP has it
        (1e6, 1, 1e-5, 0.0),
    ],
)
def test_epsilon(noise: float, releases: int, delta: float, expected: float) -> None:
    rho = releases / (2 * noise**2)
    found = epsilon(rho, delta)
    assert found == pytest.approx(expected, abs=1e-4)
    orders = 1 + np.geomspace(1e-6, 1e6, 200_000)  # no order gives a lower bound
    bounds = orders * rho + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    assert found <= max(bounds.min(), 0) + 1e-9


def test_the_documented_epsilons() -> None:
    page = (Path(__file__).parents[2] / "docs" / "federation-protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "20"]
    for z, *shown in rows:
        assert shown == [f"{epsilon(count / (2 * float(z) ** 2), 1e-5):.2f}" for count in (1, 50, 200)]


def private(tiny: dict[str, Any], tmp_path: Path, **options: Any) -> Deployed:
    settings = {**tiny, "clients": 2, "rounds": 2, "participation": 1.0, "beta": 0.5, "batch": 32}
    return deploy(tmp_path, settings, {"dp_noise": 1e-3, "dp_clip": 0.5, **options})


def at(releases: int) -> Any:
    return pytest.approx(epsilon(releases / (2 * 1e-3**2), 1e-5))


def test_a_private_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = private(tiny, tmp_path)
    deployed.serve()
    told = [line["privacy"] for line in events_of(deployed.state, "received") if line["client"] == 0]
    expected = [{"epsilon": at(n), "epsilon_all_runs": at(n), "bound": "finite"} for n in (1, 2)]
    assert told == expected
    own = [line["privacy"] for line in events_of(tmp_path / "node-0", "trained")]
    assert own == [{"delta": 1e-5, **one} for one in expected]
    [run] = (deployed.state / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["privacy"] == {"delta": 1e-5, "clients": {"0": expected[1], "1": expected[1]}}
    terms = json.loads((run / "federation.json").read_text())["terms"]
    asked = Envelope({"terms": terms, "round": 2, "parts": [], "counted": 0, "durable": 0, "fresh": False})
    node = next(iter(deployed.grid.nodes.values()))
    assert answer("evaluate", asked, node.config).body["code"] == "terms"  # exact counts stay, whoever asks
    assert all(record["loss"] == {} for record in records_of(deployed))  # exact losses stay at the site


def test_a_run_without_noise_reports_no_privacy(tiny: dict[str, Any], tmp_path: Path) -> None:
    deployed = private(tiny, tmp_path, dp_noise=0.0)
    deployed.serve()
    [run] = (deployed.state / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["privacy"] is None
    assert {line["privacy"] for line in events_of(deployed.state, "received")} == {None}
    assert {line["privacy"] for line in events_of(tmp_path / "node-0", "trained")} == {None}


def test_two_private_runs_differ(tiny: dict[str, Any], tmp_path: Path) -> None:
    digests = []
    for name in ("first", "second"):
        deployed = private(tiny, tmp_path / name)
        deployed.serve()
        digests.append([line["digest"] for line in events_of(deployed.state, "received")])
    assert not set(digests[0]) & set(digests[1])


def test_reported_losses_survive_a_restart_of_the_server(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Client 0 answers in round 1 and is away afterwards; the server is killed in round 2 and continues without it."""

    class Killed(BaseException):
        pass

    deployed = private(tiny, tmp_path)
    first, second = (deployed.grid.nodes[9000 - 7 * client] for client in (0, 1))

    def kill(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train" and len(events_of(tmp_path / "node-1", "trained")) == 2:
            raise Killed
        return reply

    second.spoil = kill
    with pytest.raises(Killed):
        deployed.serve()
    first.connected, second.spoil = False, lambda request, reply: reply
    deployed.serve()
    [run] = (deployed.state / "runs").iterdir()
    clients = json.loads((run / "summary.json").read_text())["privacy"]["clients"]
    assert clients["0"]["epsilon"] == at(1)  # the answer of round 2 never arrived
    assert clients["1"]["epsilon"] == at(3)  # one that was lost counts too


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("fednh", {}, "fednh sends exact label counts"),
        ("fedavg", {"evaluate": "nodes"}, "nodes would send exact confusion matrices"),
        ("fedavg", {"dp_noise": 1e-9}, "dp_noise must be 0 or at least 1e-06, not 1e-09"),
        ("fedavg", {"dp_clip": 1e10}, "dp_clip must be at most 1000000000, not 10000000000"),
    ],
)
def test_what_would_undo_it_is_refused(
    tiny: dict[str, Any], tmp_path: Path, method: str, options: dict[str, Any], why: str
) -> None:
    deployed = deploy(tmp_path, {**tiny, "method": method}, {"dp_noise": 1.0, **options})
    with pytest.raises(FedBMError, match=why):
        deployed.serve()
