"""The command line as a function, and a folder of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calling import Command, flags

from fedbm.cli import main


@pytest.fixture
def fedbm(capsys: pytest.CaptureFixture[str]) -> Command:
    """fedbm("run", "--rounds", 3) → exit status, standard output, standard error."""

    def call(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as stop:  # --help and --version
            status = int(stop.code or 0)
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


@pytest.fixture(scope="session")
def runs(tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of each method."""
    out = tmp_path_factory.mktemp("runs")
    for each in (tiny, tiny_fedbm):
        assert main([str(word) for word in ["run", *flags(each), "--out", out]]) == 0
    return out
