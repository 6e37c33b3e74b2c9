"""Flower's programs: their command lines, their answers, and what their errors mean."""

from __future__ import annotations

import http.client
import io
import json
import secrets
import ssl
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.federation.deploy.certificates import write_private
from fedbm.federation.deploy.settings_files import NodeSettings, ServerSettings
from fedbm.federation.deploy.supervisor import Child, environment
from fedbm.utils.io import write_text
from fedbm.version import __version__

ADMITTED = "SuperNode ID:"  # a SuperNode logs this when the server has admitted it
WORKER_READY = "worker ready"  # a worker logs this when it is loaded
LINK = "site"  # name of the server's connection in Flower's own configuration
OLDEST, NEWEST = (1, 41), (1, 43)  # supported releases of flwr: from, and below
HEALTH_SECONDS = 2.0
SECRET = "flower/superexec.secret"  # in a role's folder; made again at each start
SERVER_APP = "flwr-serverapp"  # role of a server app
MAX_APP_BYTES = 10_000
FINISHED = {"finished:completed", "finished:failed", "finished:stopped"}

# The folder that `flwr run` sends contains no code, only names. So a node runs the package that its own site installed.
APP = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedbm-app"
version = "{__version__}"
description = "Starts the installed fedbm package; contains no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedbm"

[tool.flwr.app.components]
serverapp = "fedbm.federation.server.server_app:app"
clientapp = "fedbm.federation.node.client_app:app"

[tool.flwr.app.config]
config = ""
folder = ""
"""


def check_flower() -> str:
    """Return Flower's version; raise FedBMError if it is missing or not supported."""
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise FedBMError('Flower is not installed: pip install "fedbm[flower]"') from error
    if not OLDEST <= tuple(int(part) for part in found.split(".")[:2]) < NEWEST:
        wanted = f">={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1]}"
        raise FedBMError(f"flwr {found} is installed, but this version of fedbm needs flwr{wanted}")
    return found


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def module(name: str) -> list[str]:
    """Return the command that runs a program of this package, which does not import from the current folder."""
    return [sys.executable, "-P", "-m", f"fedbm.federation.{name}"]


def is_own_app(bundle: bytes) -> bool:
    """Return whether a run's app is the one that this package makes: its description, and no other file."""
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as files:
            sizes = {item.filename: item.file_size for item in files.infolist()}
            if set(sizes) != {"pyproject.toml", ".info/CONTENT"} or max(sizes.values()) > MAX_APP_BYTES:
                return False
            return tomllib.loads(files.read("pyproject.toml").decode()) == tomllib.loads(APP)
    except Exception:  # it is damaged, encrypted or compressed in an unknown way, so it is not ours
        return False


def make_secret(folder: Path) -> None:
    """Make a new secret, without which no other program of this machine can acquire tasks of this role."""
    (folder / SECRET).unlink(missing_ok=True)
    write_private(folder / SECRET, secrets.token_bytes(32))


def connect(host: str, port: int, authority: Path | None, timeout: float) -> http.client.HTTPConnection:
    """Return a connection over TLS to a server with a certificate of *authority*, or without TLS if it is None."""
    if authority is None:
        return http.client.HTTPConnection(host, port, timeout=timeout)
    context = ssl.create_default_context(cafile=str(authority))
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def superlink(folder: Path, server: ServerSettings) -> Child:
    """Return the SuperLink on loopback, which nodes, the server app and the operator's commands connect to."""
    command = [tool("flower-superlink"), "--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    command += ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    command += ["--database", "link.db", "--host", "127.0.0.1", "--port", str(server.link_port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", SECRET]
    return Child("superlink", command, folder, lambda child: is_healthy(server.link_port, folder / "ca.crt"))


def superexec(folder: Path, server: ServerSettings) -> Child:
    """Return the program that starts server apps."""
    command = [*module("server.superexec"), "--runtime-api-address", f"127.0.0.1:{server.link_port}"]
    command += ["--root-certificates", "ca.crt", "--superexec-auth-secret-file", SECRET]
    return Child("superexec", command, folder)


def supernode(folder: Path, node: NodeSettings, data: str, address: str) -> Child:
    """Return a node's SuperNode, which connects to the server and keeps its messages for the worker."""
    home = folder.resolve()
    config = {"client": node.client, "name": node.name, "data": data, "folder": str(home), "state": str(home / "state")}
    config |= {"device": node.device, "threads": node.threads}
    config |= {"size": node.size or 0, "channels": node.channels or 0}
    command = [*module("node.supernode"), "--superlink", address, "--root-certificates", "ca.crt"]
    command += ["--auth-supernode-private-key", "node.key", "--port", str(node.runtime_port)]
    command += ["--node-config", to_pairs(config), "--isolation", "process", "--superexec-auth-secret-file", SECRET]

    def is_ready(child: Child) -> bool:
        """Return whether the server has admitted the node, which answers /health even before that."""
        return ADMITTED in child.output() and is_healthy(node.runtime_port)

    return Child("supernode", command, folder, is_ready)


def worker(folder: Path, node: NodeSettings) -> Child:
    """Return a node's worker, which answers the messages that the SuperNode keeps."""
    command = [*module("node.worker"), f"127.0.0.1:{node.runtime_port}", SECRET]
    return Child("worker", command, folder, lambda child: WORKER_READY in child.output())


def is_healthy(port: int, authority: Path | None = None) -> bool:
    """Return whether a Flower program answers GET /health on this loopback port, over TLS if *authority* is given."""
    connection = connect("127.0.0.1", port, authority, HEALTH_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def to_pairs(values: Mapping[str, Any]) -> str:
    """Return the key=value words that Flower reads; each value is a TOML literal."""
    return " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def explain_exit(output: str) -> str | None:
    """Return why a SuperNode ended, from its output, or None if the output does not show it."""
    if "code: 2004" in output or "code: 2001" in output or "Invalid SuperNode authentication" in output:
        return (
            "was refused by the server: this node's key is not registered there, or the same key is connected already "
            "(the server notices a lost node after a minute; then run the same command again)"
        )
    if "terminated gracefully" in output and ADMITTED not in output:  # what it logs on HTTP 401
        return (
            "ended by itself: the server did not accept its signature, most likely because this machine's clock is "
            "more than 5 s ahead of the server's or 300 s behind; set both clocks by NTP (timedatectl set-ntp true)"
        )
    return None


def write_connection(folder: Path, server: ServerSettings) -> None:
    """Write the address of this server for Flower's commands, into the FLWR_HOME of the server's folder."""
    authority = json.dumps(str(folder.resolve() / "ca.crt"))
    write_text(
        folder / "flower" / "config.toml",
        f'[superlink]\ndefault = "{LINK}"\n\n'
        f'[superlink.{LINK}]\naddress = "127.0.0.1:{server.link_port}"\nroot-certificates = {authority}\n',
    )


def call_flwr(folder: Path, *words: str) -> dict[str, Any]:
    """Run `flwr …` and return its JSON answer; raise FedBMError if the SuperLink refuses or does not answer."""
    done = subprocess.run(
        [tool("flwr"), *words, "--format", "json"],
        capture_output=True,
        text=True,
        env=environment(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.find("{") :])
    except ValueError:
        answer = {"error-message": done.stderr.strip() or done.stdout}
    if not answer.get("success"):
        reason = str(answer.get("error-message", "")).strip().splitlines() or ["no reason given"]
        raise FedBMError(f"'flwr {words[0]}' failed: {reason[-1]}")
    return answer


def active_runs(folder: Path) -> list[str]:
    """Return the Flower ids of the runs that have not finished."""
    return [str(run["run-id"]) for run in call_flwr(folder, "ls", LINK)["runs"] if run["status"] not in FINISHED]


def run_state(folder: Path, run: str) -> tuple[str, str]:
    """Return the status of one run, and its details."""
    known = (item for item in call_flwr(folder, "ls", LINK)["runs"] if item["run-id"] == run)
    found = next(known, {"status": "unknown", "status-details": ""})
    return str(found["status"]), str(found["status-details"])


def end_run(folder: Path, run: str) -> None:
    call_flwr(folder, "stop", run, LINK)
