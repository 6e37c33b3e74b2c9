"""Every field that a node's answers hold is in the protocol's table, and every field of the table leaves a node."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from one_process import CLASSES, Deployed, deploy

from fedbm.federation.node.node_data import write_share
from fedbm.federation.protocol.flower_records import from_records

PAGE = Path(__file__).parents[2] / "docs" / "federation-protocol.md"
NAMES = {
    "query.census": "census",
    "query.refused": "refused",
}  # Flower's message types, where the page has another word

Told = dict[str, set[str]]  # answer → the fields of those that left


def documented() -> Told:
    """The table of fields: a field's name is in backticks."""
    [table] = re.findall(r"\| answer \| fields \|\n\| --- \| --- \|\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"))
    rows = [re.match(r"\| (\w+) \| (.*) \|$", line) for line in table.splitlines()]
    found = {row[1]: set(re.findall(r"`(\w+)`", row[2])) for row in rows if row}
    every = found.pop("every")
    return {answer: fields | every for answer, fields in found.items()}


def overhear(deployed: Deployed) -> Told:
    """Serve, and all that the nodes said meanwhile."""
    told: Told = defaultdict(set)

    def hear(request: Message, reply: Message) -> Message:
        envelope = from_records(reply.content)
        kind = request.metadata.message_type
        told[NAMES.get(kind, kind) if envelope.body["code"] == "ok" else "refusal"] |= set(envelope.body)
        assert set(envelope.packed) == ({"upload"} if kind == "train" and envelope.body["code"] == "ok" else set())
        if kind == "train":  # it will lack what it was taken to hold
            for parts in deployed.folder.glob("node-1/runs/*/*/parts"):
                shutil.rmtree(parts)
        return reply

    for node in deployed.grid.nodes.values():
        node.spoil = hear
    deployed.serve()
    return told


def test_what_leaves_a_site_is_what_the_protocol_lists(tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = {**tiny, "method": "fedproto", "clients": 3, "rounds": 2, "participation": 1.0, "beta": 0.5}
    deployed = deploy(tmp_path, settings, {"evaluate": "nodes"})
    dataset = deployed.plan.dataset
    other = replace(dataset, classes=("unheard of", *dataset.classes[1:]))
    stranger = tmp_path / "stranger"
    write_share(stranger, other, deployed.plan.partition.clients[2])
    next(n for n in deployed.grid.nodes.values() if n.config["client"] == 2).config["data"] = str(stranger)
    assert overhear(deployed) == documented()


def test_no_patient_id_of_a_dicom_file_leaves_a_site_or_is_stored(tiny: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    from dicoms import make_dicom

    settings = {**tiny, "method": "fedavg", "clients": 2, "rounds": 1, "participation": 1.0, "beta": 5.0}
    deployed = deploy(tmp_path / "study", settings, {"evaluate": "nodes"})
    for name in CLASSES:
        (tmp_path / "dicom" / name).mkdir(parents=True)
        for i in range(8):
            pixels = np.random.default_rng(i).integers(0, 4096, (16, 16), dtype=np.uint16)
            content = make_dicom(pixels, bits=12, PatientID=f"SECRET{i // 2}", PatientName="SECRET^Name")
            (tmp_path / "dicom" / name / f"{i}.dcm").write_bytes(content)
    node = next(node for node in deployed.grid.nodes.values() if node.config["client"] == 1)
    node.config["data"] = str(tmp_path / "dicom")
    sent: list[bytes] = []

    def hear(request: Message, reply: Message) -> Message:
        assert from_records(reply.content).body["code"] == "ok"
        sent.extend(item.deflate() for item in get_all_nested_objects(reply).values())
        return reply

    node.spoil = hear
    deployed.serve()
    assert len(sent) > 3
    stored = [path.read_bytes() for path in (tmp_path / "study").rglob("*") if path.is_file()]
    assert any(b"site 1" in content for content in stored)
    assert not [content for content in (*sent, *stored) if b"SECRET" in content.replace(b"\0", b"")]
