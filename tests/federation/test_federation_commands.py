"""`fedbm federation …` as it is typed, without a process of Flower's: what it makes, says and refuses."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from fedbm.cli import federation_tasks, main
from fedbm.federation.audit import Audit
from fedbm.federation.deploy import flower
from fedbm.federation.deploy.settings_files import NodeSettings, Policy, read_settings
from fedbm.federation.server.run_status import StatusFile


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["federation", "init", "study", "--nodes", "2"]) == 0
    capsys.readouterr()
    return Path("study")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status and all that was printed."""
    code = main(["federation", *words])
    found = capsys.readouterr()
    return code, found.out + found.err


def test_init_says_what_to_hand_over_and_what_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, words = said(capsys, "init", "trial", "--names", "north,south", "--nodes", "2", "--host", "fl.example.org")
    assert code == 0
    assert "keep its ca.key private" in words
    assert "hand over the whole folder" in words
    assert "to rehearse on this machine" not in words  # its nodes connect to another one
    assert 'server = "fl.example.org:443"' in Path("trial/north/node.toml").read_text()
    assert said(capsys, "init", "trial") == (
        *(2, "fedbm: trial exists already and is not overwritten; choose another folder\n"),
    )


def test_a_run_s_data_are_dealt_to_the_nodes(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = read_settings(study / "hospital-2", NodeSettings).policy
    code, words = said(capsys, "partition", "study")
    assert code == 0
    assert read_settings(study / "hospital-2", NodeSettings).policy == rules != Policy()  # open, as init made them
    counts = [int(line.split(": ")[1].split()[0].replace(",", "")) for line in words.splitlines()]
    assert sum(counts) == 1258  # every training image of digits is someone's
    assert 'data = "data"' in (study / "hospital-2" / "node.toml").read_text()
    assert json.loads((study / "hospital-1" / "data" / "manifest.json").read_text())


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_other_accounts_cannot_read_what_the_commands_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    try:
        assert [said(capsys, task, "trial")[0] for task in ("init", "partition")] == [0, 0]
        assert os.umask(0o022) == 0o022  # the process of the caller has its own again
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o077) for path in (tmp_path / "trial").rglob("*")} == {"0o0"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["statsu", "study"], 'there is no task "statsu" (did you mean "status"?)'),
        (["status", "sudy"], "there is no sudy/server/server.toml; give the server"),
        (["node", "study"], "there is no study/node.toml; give the folder of one node, such as study/hospital-1"),
        (["node", "study/hospital-1"], "has no images: set data in study/hospital-1/node.toml, use --data"),
        (["node", "study/hospital-1", "--dta", "x"], 'has no argument --dta (did you mean "--data"?)'),
        (["up", "study/server"], "there is no study/server/server/server.toml; give the folder that"),
        (["up", "study"], "or run 'fedbm federation partition' to rehearse"),
        (["node", "hospital-1"], "there is no hospital-1/node.toml; give the folder of one node"),
        (["node", "."], "there is no node.toml"),
        (["run", "study"], "is not up: 'fedbm federation server study/server' starts it"),
        (["run", "study/server"], "is not up: 'fedbm federation server study/server' starts it"),
        (["run", "study", "rnu.toml"], "there is no file rnu.toml"),
        (["run", "study/hospital-1", "run.toml"], "give the server's folder, or the one that contains it"),
        (["run", "study", "study/server/run.toml"], "is not up: 'fedbm federation server study/server' starts it"),
        (["stop", "study", "--run"], "is not up: 'fedbm federation server study/server' starts it"),
        (["init", "x", "--nodes", "0"], "--nodes: must be a whole number from 1 to 65535, not 0"),
        (["init", "x", "--nodes", "three"], "--nodes: must be a whole number from 1 to 65535, not three"),
        (["renew", "study/server"], "give the folder that 'fedbm federation init' made"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = said(capsys, *words)
    assert code == 2
    assert sentence in found
    assert len(found.splitlines()) <= 4  # a node tells what it checked before it met the lack
    assert "Traceback" not in found


def test_a_damaged_status_does_not_end_the_server(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_tasks, "run_server", lambda home, report: nullcontext([]))
    monkeypatch.setattr(federation_tasks, "watch", lambda children, report: iter([None]))
    (study / "server" / "state").mkdir()
    (study / "server" / "state" / "status.json").write_text("{")
    assert said(capsys, "server", "study") == (0, "")
    assert "cannot read" in said(capsys, "status", "study")[1]


def test_without_flower_that_is_said(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flower, "version", missing)
    assert said(capsys, "status", "study") == (2, 'fedbm: Flower is not installed: pip install "fedbm[flower]"\n')


def test_alone_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["federation"])
    assert "to rehearse" in capsys.readouterr().out


def test_a_key_that_others_can_read_stops_a_node(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod(study / "hospital-1" / "node.key", 0o644)
    code, words = said(capsys, "node", "study/hospital-1", "--data", "digits")
    assert (code, "run: chmod 600 study/hospital-1/node.key" in words) == (2, True)


def test_where_nothing_runs_that_is_said(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "stop", "study") == (
        0,
        "hospital-2: processes ended: none\nhospital-1: processes ended: none\nserver: processes ended: none\n",
    )
    code, words = said(capsys, "status", "study")
    assert (code, "server: nothing runs" in words, "no run yet" in words) == (0, True, True)
    assert said(capsys, "status", "study/hospital-1") == (0, "hospital-1: nothing runs\n")
    assert said(capsys, "audit", "study") == (0, "no audit yet\n")


@pytest.mark.parametrize(
    ("phase", "remark"),
    [
        ("train", "the run has ended early. 'fedbm federation run' resumes it."),
        ("failed", "The run failed: round 1 was tried 20 times"),
        ("finished", ""),
    ],
)
def test_a_run_that_nobody_plays_does_not_look_alive(
    phase: str, remark: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = StatusFile(study / "server" / "state" / "status.json", "fedavg-digits-s0", 5)
    status.write(phase=phase, why="round 1 was tried 20 times" if phase == "failed" else None)
    code, words = said(capsys, "status", "study")
    assert (code, words.rstrip().endswith(remark)) == (0, True)
    assert ("run" in words.splitlines()[-1]) == bool(remark)


def test_the_audit_is_shown(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = Audit(study / "hospital-1" / "state" / "audit.jsonl")
    audit.append("trained", round=1)
    audit.append("trained", round=2)
    code, words = said(capsys, "audit", "study", "--lines", "1")
    assert code == 0
    assert "2 lines, unbroken" in words
    assert '"round": 2' in words
    assert '"round": 1' not in words
    audit.path.write_text(audit.path.read_text().replace('"round": 1', '"round": 7'))
    code, words = said(capsys, "audit", "study")
    assert (code, "the audit was changed" in words) == (2, True)


def test_a_certificate_is_renewed(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (study / "server" / "server.pem").read_bytes()
    code, words = said(capsys, "renew", "study", "--days", "30")
    assert (code, "valid until" in words) == (0, True)
    assert (study / "server" / "server.pem").read_bytes() != before


@pytest.mark.parametrize("task", ["approve", "status", "audit", "node"])
def test_a_folder_of_another_account_is_one_sentence(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbid(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", forbid)
    assert main(["federation", task, str(tmp_path)]) == 2
    assert f"{tmp_path / 'node.toml'}: Permission denied" in capsys.readouterr().err
