"""Clipped and noised as the formula says, counted for every update that left, and nothing exact told beside it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import deploy, events_of, records_of

from fedbm.errors import FedBMError
from fedbm.federation.node.handler import answer
from fedbm.federation.node.privacy import epsilon, privatise
from fedbm.federation.protocol.codec import Envelope
from fedbm.federation.protocol.packing import pack
from fedbm.federation.protocol.upload_checks import read_upload


def test_clipping_by_hand() -> None:
    """u = (3, 4) has norm 5; clipped to 1 it is (0.6, 0.8). Noise of multiplier 0 adds nothing."""
    received = {"w": torch.tensor([1.0, 1.0]), "n": torch.tensor(3)}
    upload = {"w": torch.tensor([4.0, 5.0]), "n": torch.tensor(7)}
    found = privatise(upload, received, clip=1.0, noise=0.0)
    assert torch.allclose(found["w"], torch.tensor([1.6, 1.8]))
    assert int(found["n"]) == 7
    within = privatise(upload, received, clip=6.0, noise=0.0)
    assert torch.equal(within["w"], upload["w"])


def test_noise_has_the_spread_that_is_asked_for() -> None:
    zero = {"w": torch.zeros(200_000)}
    first, second = (privatise(zero, zero, clip=0.5, noise=2.0)["w"] for _ in range(2))
    assert float(first.std()) == pytest.approx(1.0, rel=0.02)
    assert not torch.equal(first, second)  # not from the run's seed, which the server knows


def test_a_variance_that_noise_or_rounding_took_below_zero_is_read_as_zero() -> None:
    """Its root is no number, and one such channel is the end of every score. Other numbers may be negative."""
    name = "body.bn1.running_var"
    sent = {name: torch.tensor([1.0, 1.0]), "w": torch.tensor([1.0])}
    expected = {key: (value.dtype, tuple(value.shape)) for key, value in sent.items()}
    noised = {name: torch.tensor([-0.5, 0.5]), "w": torch.tensor([-0.5])}
    found, _ = read_upload(pack(noised), expected, sent, max_norm=10.0)
    assert (found[name].tolist(), found["w"].tolist()) == ([0.0, 0.5], [-0.5])
    sent[name] = torch.tensor([0.99, 1.0])
    small = {name: torch.tensor([1e-6, 1.0]), "w": torch.tensor([1.0])}  # −0.989999 is −0.990234 in 16 bits
    found, _ = read_upload(pack(small, "delta", sent), expected, sent, max_norm=10.0)
    assert found[name].tolist() == [0.0, 1.0]


def test_epsilon_grows_with_releases_and_falls_with_noise() -> None:
    pytest.importorskip("opacus")
    one = epsilon(4.0, 1, 1e-5)
    # the Gaussian mechanism's RDP is α/(2z²); the best α of the classic conversion gives an upper bound
    bound = min(a / (2 * 16) + math.log(1e5) / (a - 1) for a in (x / 10 for x in range(11, 2000)))
    assert 0 < one <= bound * 1.01
    assert epsilon(4.0, 10, 1e-5) > one > epsilon(8.0, 1, 1e-5)


def test_a_private_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    settings = {**tiny, "clients": 2, "rounds": 2, "ratio": 1.0, "beta": 0.5, "batch": 32}
    deployed = deploy(tmp_path, settings, {"dp_noise": 1e-3, "dp_clip": 0.5})
    deployed.serve()
    told = [line["epsilon"] for line in events_of(deployed.state, "received") if line["client"] == 0]
    assert told == [pytest.approx(epsilon(1e-3, 1, 1e-5)), pytest.approx(epsilon(1e-3, 2, 1e-5))]
    assert [line["epsilon"] for line in events_of(tmp_path / "node-0", "trained")] == told
    terms = json.loads(next(deployed.state.glob("runs/*/federation.json")).read_text())["terms"]
    asked = Envelope({"terms": terms, "round": 2, "parts": [], "counted": 0, "durable": 0, "fresh": False})
    node = next(iter(deployed.grid.nodes.values()))
    assert answer("evaluate", asked, node.config).body["code"] == "terms"  # exact counts stay, whoever asks
    assert all(record["loss"] == {} for record in records_of(deployed))  # exact losses stay at the site


def test_a_site_without_opacus_sends_nothing(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    deployed = deploy(tmp_path, {**tiny, "clients": 2, "batch": 32}, {"dp_noise": 1.0, "attempts": 1})
    with pytest.raises(FedBMError, match="never had enough usable answers"):
        deployed.serve()
    why = {line["why"] for line in events_of(deployed.state, "missed")}
    assert why == {"it cannot count its privacy: Opacus is not installed there"}


@pytest.mark.parametrize(
    ("method", "evaluate", "why"),
    [
        ("fednh", "server", "fednh sends exact label counts"),
        ("fedavg", "nodes", "nodes would send exact confusion matrices"),
    ],
)
def test_what_would_undo_it_is_refused(
    tiny: dict[str, Any], tmp_path: Path, method: str, evaluate: str, why: str
) -> None:
    deployed = deploy(tmp_path, {**tiny, "method": method}, {"dp_noise": 1.0, "evaluate": evaluate})
    with pytest.raises(FedBMError, match=why):
        deployed.serve()
