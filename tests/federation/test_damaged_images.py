"""Prepared images that are damaged between rounds: found at the next message, prepared or cached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from one_process import Deployed, deploy, events_of, records_of

from fedbm.federation.node import node_data
from fedbm.federation.node.node_data import SiteData, open_site
from fedbm.federation.protocol.flower_records import from_records
from fedbm.federation.protocol.messages import Refusal


def overwrite(images: Path) -> None:
    """Change some bytes in place; size and modification time stay."""
    before = images.stat()
    with images.open("r+b") as stream:
        stream.seek(before.st_size // 2)
        byte = stream.read(1)[0]
        stream.seek(before.st_size // 2)
        stream.write(bytes([byte ^ 255]))
    os.utime(images, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert images.stat().st_mtime_ns == before.st_mtime_ns


@pytest.fixture
def deployed(tiny: dict[str, Any], tmp_path: Path) -> Deployed:
    settings = {**tiny, "clients": 3, "rounds": 3, "participation": 1.0, "beta": 0.5, "batch": 32}
    return deploy(tmp_path, settings)


def test_images_overwritten_between_rounds_are_refused(deployed: Deployed, tmp_path: Path) -> None:
    def overwrites(request: Message, reply: Message) -> Message:
        if from_records(request.content).body.get("round") == 1:
            overwrite(tmp_path / "share-1" / "images.npy")
        return reply

    next(node for node in deployed.grid.nodes.values() if node.config["client"] == 1).spoil = overwrites
    deployed.serve()
    used = [[entry["client"] for entry in record["clients"]] for record in records_of(deployed)]
    assert used == [[0, 1, 2], [0, 2], [0, 2]]
    missed = events_of(deployed.state, "missed")
    assert {(line["client"], line["why"]) for line in missed} == {(1, "it cannot read its data, or they are damaged")}
    assert {line["code"] for line in events_of(tmp_path / "node-1", "refused")} == {"data"}


def test_images_are_read_again_only_when_their_status_changes(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[bool] = []
    true = node_data.open_prepared
    monkeypatch.setattr(
        node_data, "open_prepared", lambda folder, verify: checks.append(verify) or true(folder, verify)
    )
    dataset, share = deployed.plan.dataset, tmp_path / "share-1"

    def open_again(known: SiteData | None) -> SiteData:
        checks.clear()
        return open_site(str(share), dataset.classes, dataset.shape, known)

    first = open_again(None)
    assert checks == [False, True]
    assert open_again(first) is first
    assert checks == [False]
    (share / "images.npy").touch()
    second = open_again(first)
    assert second is not first
    assert checks == [False, True]
    overwrite(share / "images.npy")
    with pytest.raises(Refusal):
        open_again(second)


def test_a_damaged_copy_in_the_cache_is_made_again(deployed: Deployed, scans: Path) -> None:
    dataset = deployed.plan.dataset
    first = open_site(str(scans), dataset.classes, dataset.shape)
    assert isinstance(first.dataset.images, np.memmap)
    before = np.array(first.dataset.images)
    overwrite(Path(str(first.dataset.images.filename)))
    again = open_site(str(scans), dataset.classes, dataset.shape)
    assert np.array_equal(again.dataset.images, before)
