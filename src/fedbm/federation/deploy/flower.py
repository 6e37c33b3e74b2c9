"""Flower's programs: their command lines, their answers, and what their errors mean."""

from __future__ import annotations

import http.client
import io
import json
import ssl
import sys
import tomllib
import zipfile
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from fedbm.errors import FedBMError
from fedbm.federation.deploy.settings_files import NodeSettings, ServerSettings, read_settings
from fedbm.federation.deploy.supervisor import Child
from fedbm.version import __version__

ADMITTED = "the server has admitted this node"  # a worker prints this
SIGNED_OFF = "the worker was stopped"  # and this, if a signal ends it
SUPPORTED = ">=1.41,<1.43"  # releases of flwr
TIMEOUT_S = 20.0
ASK_ERRORS = (OSError, http.client.HTTPException, ValueError, OverflowError)  # the last two: an odd address
SECRET = "flower/superexec.secret"  # in the server's folder; made again at each start
SERVER_APP = "flwr-serverapp"  # role of a server app
MAX_APP_BYTES = 10_000

# The app that a run sends contains no code, only names. So a node runs the package that its own site installed.
APP = f"""\
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
clientapp = "fedbm.federation.node.worker:reply"

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
    if found not in SpecifierSet(SUPPORTED, prereleases=True):
        raise FedBMError(f"flwr {found} is installed, but this version of fedbm needs flwr{SUPPORTED}")
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


def ask(address: str, authority: Path, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Send a request over TLS to host:port, through no proxy, and return status and content of the answer.

    Raise one of ASK_ERRORS if no server with a certificate of *authority* answers.
    """
    context = ssl.create_default_context(cafile=str(authority))
    with closing(http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=context)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/protobuf"} if body is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read()


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


def worker(folder: Path, node: NodeSettings, data: str, address: str) -> Child:
    """Return a node's worker, which connects to the server and answers its messages."""
    home = folder.resolve()
    config = {"client": node.client, "name": node.name, "data": data, "folder": str(home), "state": str(home / "state")}
    config |= {"device": node.device, "threads": node.threads, "size": node.size or 0, "channels": node.channels or 0}
    command = [*module("node.worker"), address, json.dumps(config)]
    return Child("worker", command, folder, lambda child: ADMITTED in child.output())


def is_healthy(port: int, authority: Path) -> bool:
    """Return whether a Flower program with a certificate of *authority* answers GET /health on this loopback port."""
    try:
        return ask(f"127.0.0.1:{port}", authority, "GET", "/health")[0] == http.client.OK
    except ASK_ERRORS:
        return False


def explain_exit(output: str) -> str | None:
    """Return why a worker ended, from its output, or None if the output does not show it."""
    if "code: 2004" in output or "code: 2001" in output or "Invalid SuperNode authentication" in output:
        return "was refused by the server: its key is not registered, or still connected (a lost node, for a minute)"
    if SIGNED_OFF in output and ADMITTED not in output:  # Flower stops the process on HTTP 401
        return "ended: the server did not accept its signature; set both clocks by NTP (timedatectl set-ntp true)"
    return None


def call_control(folder: Path, task: str, **fields: Any) -> Any:
    """Call the control interface of the server in *folder* with these *fields*, and return its protobuf answer.

    Raise FedBMError if the SuperLink refuses or does not answer.
    """
    from flwr.proto import control_pb2

    name = task.title().replace("-", "")
    request = getattr(control_pb2, f"{name}Request")(**fields)
    address = f"127.0.0.1:{read_settings(folder, ServerSettings).link_port}"
    try:
        status, content = ask(address, folder / "ca.crt", "POST", f"/v1/control/{task}", request.SerializeToString())
    except ASK_ERRORS as error:
        raise FedBMError(f"the SuperLink did not answer {task}: {error}") from error
    if status != http.client.OK:
        raise FedBMError(f"the SuperLink refused {task}: it answered {status}")
    return getattr(control_pb2, f"{name}Response").FromString(content)
