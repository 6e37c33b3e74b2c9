"""The package as a user gets it: built, checked for the index, and installed in an empty environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGE = "FEDBM_TEST_LARGE_TORCH"  # set it to install PyTorch even with CUDA, which is several GB
PYTHONS = ("3.11", "3.12", "3.13")

pytestmark = [pytest.mark.package, pytest.mark.timeout(3600)]


def call(*words: str | Path, cwd: Path | None = None) -> str:
    """Run a command without this checkout on its path, and return its output."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--outdir", folder, ROOT)  # the wheel is built from the source archive
    return folder


def test_the_index_accepts_it_and_shows_its_readme(dist: Path) -> None:
    call(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = message_from_bytes(archive.read(name))
    links = re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload())
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= {
        url.partition(",")[0] for url in metadata.get_all("Project-URL", ())
    }


def test_the_archives_contain_the_files_of_the_package(dist: Path) -> None:
    files = subprocess.run(
        ["git", "ls-files", "src/fedbm"], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as sources:
        wheel_files = set(archive.namelist())
        source_files = {name.partition("/")[2] for name in sources.getnames()}
    assert set(files.split()) <= source_files
    assert {name.removeprefix("src/") for name in files.split()} <= wheel_files


@pytest.mark.parametrize("version", PYTHONS)
def test_a_comparison_runs_in_an_empty_environment(version: str, dist: Path, tmp_path: Path) -> None:
    current = f"{sys.version_info.major}.{sys.version_info.minor}" == version
    python = sys.executable if current else shutil.which(f"python{version}")
    if not python or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"Python {version} is not here")
    call(python, "-m", "venv", tmp_path / "env")
    bin_ = tmp_path / "env" / "bin"
    (wheel,) = dist.glob("*.whl")
    install = (bin_ / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    planned = json.loads(call(*install, "--dry-run", "--report", "-"))["install"]
    if any(one["metadata"]["name"].startswith("nvidia-") for one in planned) and not os.environ.get(LARGE):
        pytest.skip(f"pip would install PyTorch with CUDA for Python {version}, several GB; {LARGE}=1 allows it")
    call(*install)
    fedbm = bin_ / "fedbm"
    found = json.loads(call(fedbm, "doctor", "--json"))
    assert found["works"]
    assert f"Python {version}." in str(found["findings"])
    small = ("--width", "8", "--clients", "3", "--generator-steps", "2", "--device", "cpu")
    call(fedbm, "compare", "--data", "digits", "--rounds", "2", "--seeds", "1", *small, cwd=tmp_path)
    assert "FedBM" in (tmp_path / "report.html").read_text(encoding="utf-8")
    runs = json.loads(call(fedbm, "list", "--json", cwd=tmp_path))
    assert [run["state"] for run in runs] == ["finished", "finished"]
