"""Run Flower's SuperExec, which starts server apps, so that it starts only the app of this package.

    python -m fedbm.federation.server.superexec …                  the SuperExec, with Flower's own options
    python -m fedbm.federation.server.superexec flwr-serverapp …   a server app, with its token on standard input

Flower's control interface asks for no credential. So every account of the server's machine could start an app of its
own, and Flower would run the code of that app with the rights of the server. Here an app is compared with the app of
this package before anything of it is installed. Tokens are not on command lines, because all accounts can read them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from typing import Any

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

from fedbm.errors import FedBMError
from fedbm.federation.deploy.flower import SERVER_APP, is_own_app, module
from fedbm.federation.deploy.supervisor import ROLE


class OwnExecutor(SubprocessExecutor):
    """Start server apps, and no other kind of task."""

    def get_eligible_capacity(self, supported_task_types: Any, **options: Any) -> tuple[set[TaskType], set[str]]:
        return {TaskType.SERVER_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        command = [*module("server.superexec"), SERVER_APP, "--runtime-api-address", spec.runtime_api_address]
        command += ["--root-certificates", str(spec.root_certificates_path), "--parent-pid", str(spec.parent_pid)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, ROLE: SERVER_APP},
            text=True,
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(spec.token)
        return LaunchResult.accepted()


def install_own_app_only() -> None:
    """Let the server app of this process refuse every other app."""
    program = import_module("flwr.superlink.runtime.run_serverapp")
    install = program.install_from_fab

    def install_own(bundle: bytes, **options: Any) -> Any:
        if not is_own_app(bundle):
            raise FedBMError("this server runs only the app of its own version of fedbm")
        return install(bundle, **options)

    vars(program)["install_from_fab"] = install_own


def main() -> None:
    if sys.argv[1:2] == [SERVER_APP]:
        from flwr.superlink.cli import flwr_serverapp

        install_own_app_only()
        sys.argv = [SERVER_APP, *sys.argv[2:], "--token", sys.stdin.readline()]  # only in this process, not in `ps`
        flwr_serverapp()
        return
    from flwr.supercore.cli import flower_superexec

    vars(import_module("flwr.supercore.superexec.run_superexec"))["get_executor"] = lambda *_, **options: OwnExecutor()
    flower_superexec()


if __name__ == "__main__":
    main()
