"""An audit's lines hang together: what is changed, taken out or put in shows, and a killed writer does no harm."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fedbm.errors import FedBMError
from fedbm.federation.audit import START, Audit, verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    audit = Audit(tmp_path / "audit.jsonl")
    for client in range(4):
        audit.append("joined", client=client, name="Größe", loss=float("nan"))
    return audit.path


def test_each_line_holds_the_hash_of_the_one_before(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    hashes = [START, *(hashlib.sha256(line).hexdigest() for line in lines)]
    assert [json.loads(line)["before"] for line in lines] == hashes[:-1]
    assert verify(path).head == hashes[-1]
    assert Audit(path).head == hashes[-1]
    assert [line["client"] for line in verify(path).lines] == [0, 1, 2, 3]
    assert verify(path).lines[0]["loss"] is None


def test_an_audit_that_is_not_there_starts_from_nothing(tmp_path: Path) -> None:
    assert Audit(tmp_path / "none").head == START


@pytest.mark.parametrize(
    ("number", "tamper"),
    [
        (3, lambda lines: [lines[0], lines[1].replace(b'"client": 1', b'"client": 9'), *lines[2:]]),
        (2, lambda lines: [lines[0], *lines[2:]]),
        (1, lambda lines: lines[1:]),
        (2, lambda lines: [lines[0], lines[0], *lines[1:]]),
        (2, lambda lines: [lines[0], lines[2], lines[1], lines[3]]),
        (3, lambda lines: [*lines[:2], b"{}", *lines[2:]]),
        (4, lambda lines: [*lines[:3], b"not json"]),
        (4, lambda lines: [*lines[:3], b"[" * 100_000]),
    ],
)
def test_tampering_is_named_by_line(path: Path, number: int, tamper) -> None:
    path.write_bytes(b"\n".join(tamper(path.read_bytes().splitlines())) + b"\n")
    with pytest.raises(FedBMError, match=f"^line {number} of .*changed"):
        verify(path)


def test_the_end_is_told_by_the_head_alone(path: Path) -> None:
    """Lines cut off at the end leave a whole chain: what the other side wrote down of its head tells."""
    head = Audit(path).head
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert verify(path).head != head


def test_half_a_line_is_refused_and_written_over(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"format": 1, "num')
    with pytest.raises(FedBMError, match="the last line of .* is incomplete"):
        verify(path)
    Audit(path).append("after")
    assert len(verify(path).lines) == 5
    assert path.read_bytes().startswith(whole)


def test_a_long_line_is_followed_too(path: Path) -> None:
    Audit(path).append("long", why="x" * 2_000_000)
    Audit(path).append("after")
    assert len(verify(path).lines) == 6


def test_a_file_of_another_kind_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_text("hello\n")
    with pytest.raises(FedBMError, match="last line of .* is damaged"):
        Audit(tmp_path / "audit.jsonl").append("x")


def test_half_a_surrogate_pair_is_written_and_is_not_taken_for_damage(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.append("first", text="\ud800 é")
    audit.append("second")
    assert [line["event"] for line in verify(audit.path).lines] == ["first", "second"]
    assert "é" in audit.path.read_text(encoding="utf-8")
