"""A run's folder: held by one process, lines whole or left out, and numbers that JSON can hold."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbm.engine.round_record import Dropped, RoundRecord, Traffic
from fedbm.engine.run_folder import RunFolder, find_run, read_rounds, replace_nonfinite
from fedbm.errors import FedBMError


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    with made.lock():
        for number in (1, 2, 3):
            made.append(record_of(number))
    return made


def record_of(number: int) -> RoundRecord:
    return RoundRecord(
        round=number,
        loss={"a": number / 3, "b": math.nan},
        dropped=(Dropped(2, "größer\nals 1"),),
        generator=None,
        val=None,
        test=None,
        personal=None,
        bytes=Traffic(1, 2),
        seconds={"total": 0.5},
    )


def rounds(folder: RunFolder) -> list[int]:
    return [record.round for record in read_rounds(folder.path / "rounds.jsonl")]


def test_what_was_appended_is_read_back(folder: RunFolder) -> None:
    assert rounds(folder) == [1, 2, 3]
    first = read_rounds(folder.path / "rounds.jsonl")[0]
    assert first == dataclasses.replace(record_of(1), loss={"a": 1 / 3, "b": None})
    assert "averaged" not in json.loads((folder.path / "rounds.jsonl").read_text().splitlines()[0])
    folder.append(record_of(4), has_average=True)
    assert json.loads((folder.path / "rounds.jsonl").read_text().splitlines()[3])["averaged"] is None


def test_not_yet_a_line(tmp_path: Path) -> None:
    assert read_rounds(tmp_path / "rounds.jsonl") == ()
    (tmp_path / "rounds.jsonl").write_text("")
    assert read_rounds(tmp_path / "rounds.jsonl") == ()
    with pytest.raises(FedBMError, match="cannot read"):
        read_rounds(tmp_path)


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", "null", '{"loss": 1}', '{"round": "1"}', '{"round": true}', "\udcff", ""]
)
def test_a_damaged_line_is_named(folder: RunFolder, line: str) -> None:
    path = folder.path / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line.encode(errors="surrogateescape") + b"\n" + lines[2])
    with pytest.raises(FedBMError, match=r"^line 2 of .*rounds\.jsonl is damaged: .*\. Remove .*run to start this run"):
        read_rounds(path)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), junk=st.binary(max_size=12).filter(lambda junk: b"\n" not in junk))
def test_cut_anywhere_the_whole_lines_remain(folder: RunFolder, cut: int, junk: bytes) -> None:
    path = folder.path / "rounds.jsonl"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:cut] + junk)
        assert rounds(folder) == [1, 2, 3][: whole[:cut].count(b"\n")]
        folder.cut_after(0)
        assert rounds(folder) == []
    finally:
        path.write_bytes(whole)


def test_lines_after_the_checkpoint_are_cut(folder: RunFolder) -> None:
    before = (folder.path / "rounds.jsonl").read_bytes()
    folder.cut_after(3)
    assert (folder.path / "rounds.jsonl").read_bytes() == before
    folder.cut_after(1)
    assert (folder.path / "rounds.jsonl").read_bytes() == before.splitlines(keepends=True)[0]
    folder.append(record_of(2))
    assert rounds(folder) == [1, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("null", "NaN", 1), "line 1 of .* is damaged: lr must be a number, not nan. Remove"),
        (lambda text: text.splitlines(keepends=True)[0] + text, "must contain rounds 1 to 3, because the checkpoint"),
    ],
)
def test_a_run_does_not_resume_after_damaged_lines(folder: RunFolder, change: Any, words: str) -> None:
    path = folder.path / "rounds.jsonl"
    damaged = change(path.read_text(encoding="utf-8"))
    path.write_text(damaged, encoding="utf-8")
    with pytest.raises(FedBMError, match=words):
        folder.cut_after(3)
    assert path.read_text(encoding="utf-8") == damaged


def test_lines_the_checkpoint_counts_on_must_be_there(folder: RunFolder) -> None:
    before = (folder.path / "rounds.jsonl").read_bytes()
    with pytest.raises(FedBMError, match="must contain rounds 1 to 5, because the checkpoint"):
        folder.cut_after(5)
    assert (folder.path / "rounds.jsonl").read_bytes() == before


def test_a_run_is_held_by_one_and_released_however_it_ends(folder: RunFolder) -> None:
    other = RunFolder(folder.path)
    with folder.lock():
        with pytest.raises(FedBMError, match=r"another process is working on .*\. Wait until it has ended\.$"):
            other.lock().__enter__()
        assert rounds(other) == [1, 2, 3]  # looking is free
    with pytest.raises(ZeroDivisionError), folder.lock():
        raise ZeroDivisionError
    with other.lock():
        pass


def test_holding_sweeps_what_a_kill_left_half_written(folder: RunFolder) -> None:
    (folder.path / "clients").mkdir()
    leftovers = [folder.path / ".summary.json.7.part", folder.path / "clients" / ".0-1.safetensors.7.part"]
    for path in leftovers:
        path.write_text("half")
    (folder.path / "notes.part").write_text("the user's own")
    with folder.lock():
        assert not any(path.exists() for path in leftovers)
    assert (folder.path / "notes.part").exists()


def test_done_means_a_summary(folder: RunFolder) -> None:
    assert not folder.done
    (folder.path / "summary.json").write_text("{}")
    assert folder.done


numbers = st.floats() | st.integers() | st.none() | st.booleans() | st.text(max_size=5)
values = st.recursive(
    numbers, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(values)
def test_finite_leaves_all_but_infinities_as_it_is(value: Any) -> None:
    made = replace_nonfinite(value)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    if value == made:  # NaN equals nothing, itself included
        assert repr(value) == repr(made)


def test_finite_by_hand() -> None:
    assert replace_nonfinite({"a": [1, math.inf, (2.5, math.nan)], "b": -math.inf, "c": "nan"}) == {
        "a": [1, None, [2.5, None]],
        "b": None,
        "c": "nan",
    }


def test_finding_a_run(tmp_path: Path) -> None:
    for name in ("fedavg-digits-s0-aaaa", "fedbm-digits-s0-bbbb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
    one = tmp_path / "fedbm-digits-s0-bbbb"
    assert find_run(tmp_path, "bbbb") == find_run(tmp_path, one.name) == find_run(tmp_path, str(one)) == one
    for name in ("fedavg-c-s0-cccd", "fedavg-chars-s0-dddd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
    assert find_run(tmp_path, "fedavg-c") == tmp_path / "fedavg-c-s0-cccd"  # whole words are preferred
    with pytest.raises(FedBMError, match=r'"digits" stands for several runs: [^ ]*, [^ ]*\. Give the folder'):
        find_run(tmp_path, "digits")
    with pytest.raises(FedBMError, match="there is no run \"ffff\" in .*; 'fedbm list .*' lists runs"):
        find_run(tmp_path, "ffff")
    with pytest.raises(FedBMError, match=r" stands for several runs: .*fedavg-c"):
        find_run(tmp_path / "elsewhere", str(tmp_path))
