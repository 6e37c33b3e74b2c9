"""The server starts only the app of its own package, and no token is on a command line."""

from __future__ import annotations

import inspect
import io
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.types import ExecutionSpec
from one_process import FakeGrid

from fedbm.errors import FedBMError
from fedbm.federation.deploy.flower import APP
from fedbm.federation.deploy.supervisor import MARK
from fedbm.federation.server import superexec
from fedbm.federation.server.server_app import app as server_app

TOKEN = "0123456789abcdef"


def test_only_the_own_app_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[bytes] = []
    program = import_module("flwr.superlink.runtime.run_serverapp")
    monkeypatch.setattr(program, "install_from_fab", lambda bundle, skip_prompt: installed.append(bundle))
    superexec.install_own_app_only()
    own = build_fab_from_files({"pyproject.toml": APP.encode()})[0]
    page = APP.replace("fedbm.federation.server.server_app:app", "hostile:app")
    foreign = build_fab_from_files({"pyproject.toml": page.encode(), "hostile.py": b"print()"})[0]
    with pytest.raises(FedBMError, match="runs only the app of its own version"):
        program.install_from_fab(foreign, skip_prompt=True)
    program.install_from_fab(own, skip_prompt=True)
    assert installed == [own]


def test_flower_installs_an_app_before_it_loads_it() -> None:
    source = inspect.getsource(import_module("flwr.superlink.runtime.run_serverapp").run_serverapp)
    steps = [source.index(step) for step in ("install_from_fab(fab.content", "get_project_config(", "run_(")]
    assert steps == sorted(steps)
    assert "executor = get_executor(" in inspect.getsource(import_module("flwr.supercore.superexec.run_superexec"))


def test_a_server_app_gets_its_token_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, sys\n"
        f"told = pathlib.Path({str(tmp_path)!r})\n"
        "(told / 'part').write_text(' '.join(sys.argv[1:]) + '\\n' + sys.stdin.read())\n"
        "(told / 'part').rename(told / 'told')\n"
    )
    monkeypatch.setattr(superexec, "module", lambda name: [sys.executable, "-S", str(program), name])
    spec = ExecutionSpec(TaskType.SERVER_APP, "127.0.0.1:8000", TOKEN, False, "ca.crt", False, 7, True, 1)
    executor = superexec.OwnExecutor()
    assert executor.get_eligible_capacity(set(TaskType)) == ({TaskType.SERVER_APP}, set())
    executor.launch(spec)
    for _ in range(300):
        if (tmp_path / "told").exists():
            break
        time.sleep(0.05)
    command, token = (tmp_path / "told").read_text().splitlines()
    assert command == (
        "server.superexec flwr-serverapp --runtime-api-address 127.0.0.1:8000 --root-certificates ca.crt --parent-pid 7"
    )
    assert token == TOKEN


def test_a_run_cannot_use_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "server"))
    run_config = {"config": str(tmp_path / "run.toml"), "folder": str(tmp_path / "other")}
    with pytest.raises(FedBMError, match="folder must be the folder of this server"):
        server_app(FakeGrid({}), Context(1, 1, {}, RecordDict(), run_config))


def test_the_programs_start_flowers_own_with_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    program = import_module("flwr.superlink.runtime.run_serverapp")
    exec_ = import_module("flwr.supercore.superexec.run_superexec")
    monkeypatch.setattr(program, "install_from_fab", program.install_from_fab)
    monkeypatch.setattr(exec_, "get_executor", exec_.get_executor)
    monkeypatch.setattr("flwr.superlink.cli.flwr_serverapp", lambda: started.append(sys.argv))
    monkeypatch.setattr("flwr.supercore.cli.flower_superexec", lambda: started.append(sys.argv))
    monkeypatch.setattr(sys, "stdin", io.StringIO(TOKEN))
    for words in (["flwr-serverapp", "--parent-pid", "7"], ["--runtime-api-address", "127.0.0.1:8000"]):
        monkeypatch.setattr(sys, "argv", ["superexec", *words])
        superexec.main()
    assert started[0] == ["flwr-serverapp", "--parent-pid", "7", "--token", TOKEN]
    assert started[1][1:] == ["--runtime-api-address", "127.0.0.1:8000"]
    assert isinstance(exec_.get_executor("subprocess"), superexec.OwnExecutor)
