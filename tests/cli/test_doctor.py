"""fedbm doctor: what it finds, what to do about it, and its exit status; and completion in a real shell."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from calling import Command, one_sentence


def findings(out: str) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in json.loads(out)["findings"]}


def test_a_missing_gpu_or_extra_is_a_note(fedbm: Command, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "pyarrow":
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "transformers" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = fedbm("doctor", "--json")
    assert (status, err) == (0, "")
    found = findings(out)
    assert [found[check]["state"] for check in ("packages", "PyTorch", "cache")] == ["ok"] * 3
    assert found["CUDA"]["state"] == "note"
    assert found["extra parquet"]["advice"] == "Run: pip install 'fedbm[parquet]'"
    assert found["extra text"]["found"] == "transformers>=4.48 (found: 1.0)"
    assert found["cache"]["found"] == str(cache)
    status, out, _ = fedbm("doctor")
    assert status == 0
    assert out.endswith("The core works.\n")


@pytest.mark.parametrize("fault", ["torch too old", "torch broken", "cache", "not installed"])
def test_a_core_that_does_not_work(fault: str, fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "torch too old":
        real = metadata.version
        monkeypatch.setattr(metadata, "version", lambda name: "2.0" if name == "torch" else real(name))
    elif fault == "torch broken":
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # it has no tensors
    elif fault == "cache":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("FEDBM_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.setattr(metadata, "requires", lambda name: metadata.version("no such package"))
    check, words = {
        "torch too old": ("packages", "pip install fedbm"),
        "torch broken": ("PyTorch", "pip install"),
        "cache": ("cache", "FEDBM_HOME"),
        "not installed": ("packages", "pip install fedbm"),
    }[fault]
    status, out, err = fedbm("doctor", "--json")
    assert status == 2
    assert json.loads(out)["works"] is False
    assert findings(out)[check]["state"] == "problem"
    assert words in findings(out)[check]["advice"]
    assert f"does not work: {check}." in one_sentence(err)


def test_a_full_disk_is_a_note(fedbm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_500_000_000))
    status, out, _ = fedbm("doctor", "--json")
    assert status == 0
    assert findings(out)["disk"]["state"] == "note"
    assert findings(out)["disk"]["found"].startswith("1.5 GB free")


def test_bash_completes_commands_flags_choices_and_files(fedbm: Command, tmp_path: Path) -> None:
    if not (bash := shutil.which("bash")):
        pytest.skip("bash is not here")
    _, script, _ = fedbm("completion", "bash")
    (tmp_path / "photos").mkdir()
    program = f"""{script}
try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_fedbm; echo "${{COMPREPLY[*]}}"; }}
try fedbm li; try fedbm federation stat; try fedbm list --js; try fedbm run --partition dir; try fedbm data inspect ph
try fedbm run --meth; try fedbm compare --warmup
"""
    done = subprocess.run([bash, "-c", program], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert done.stdout.split() == [
        *("list", "status", "--json", "dirichlet", "photos"),
        *("--method", "--warmup-rounds"),
    ]
    assert "#compdef fedbm" in fedbm("completion", "zsh")[1]
