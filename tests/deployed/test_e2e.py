"""FedBM deployed on this machine, as `fedbm federation up` does it: TLS, keys, three nodes, and the same bits."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from deployment import NODES, Deployment

from fedbm.federation.audit import verify

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

FEDBM = """generator_every = 2
generator_steps = 3
generator_batch = 8
generator_width = 8
pseudo_batch = 4"""


def test_fedbm_over_tls_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    with Deployment(tmp_path, "fedbm", FEDBM, rounds=3) as made:
        done = made.fedbm("up", made.folder, made.file)
        assert "ready: 3 nodes are connected" in done.stdout
        assert "round 3/3 done" in done.stdout
        assert made.final_digest() == made.digests()[-1] == made.digest_in_process(tmp_path / "runs")
        assert [len(record["clients"]) for record in made.records()] == [3, 3, 3]
        assert made.orphans() == []

        for site in ("server", *NODES):  # what was said is whole, and each knows the other's last line
            assert len(verify(made.folder / site / "state" / "audit.jsonl").lines) > 3
        assert {line["name"] for line in made.events("joined")} == set(NODES)


def test_nothing_but_loopback_is_there_to_be_contacted() -> None:
    if os.environ.get("FEDBM_LOOPBACK_ONLY") != "1":
        pytest.skip("not in a network namespace of its own: run it with make e2e, on a machine that allows one")
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
