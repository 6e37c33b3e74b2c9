"""Flower's programs as this package calls them: their arguments, their answers, their refusals in plain words."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.federation.deploy.processes import Child, environment, programs
from fedbm.federation.deploy.site_files import Node, Server
from fedbm.utils.io import write_text

ADMITTED = "SuperNode ID:"  # what a SuperNode logs when the server has let it in
LINK = "site"  # the name of the server's connection in Flower's own configuration
OLDEST, NEWEST = (1, 41), (1, 43)  # flwr's releases this was tried with: from, and below
HEALTH_SECONDS = 2.0  # for an answer of a program on this machine
OVER = {"finished:completed", "finished:failed", "finished:stopped"}


def check_flower() -> str:
    """Flower's version; FedBMError where it is missing or none this package was tried with."""
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise FedBMError('Flower is not installed: pip install -c constraints.txt -e ".[flower]"') from error
    if not OLDEST <= tuple(int(part) for part in found.split(".")[:2]) < NEWEST:
        wanted = f">={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1]}"
        raise FedBMError(f"flwr {found} is installed, but this version of fedbm needs flwr{wanted}")
    return found


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def superlink(folder: Path, server: Server) -> Child:
    """The SuperLink, on loopback: what nodes, the server app and the operator's commands speak with."""
    command = [tool("flower-superlink"), "--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    command += ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    command += ["--database", "link.db", "--host", "127.0.0.1", "--port", str(server.link_port)]
    command += ["--isolation", "process"]
    authority = folder / "ca.crt"
    return Child("superlink", command, folder, alone=False, ready=lambda child: is_healthy(server.link_port, authority))


def superexec(folder: Path, server: Server) -> Child:
    """What starts server apps. Apart from the SuperLink, which would take it and them along when it dies: so they
    live on, and find the SuperLink again once it is back."""
    command = [tool("flower-superexec"), "--runtime-api-address", f"127.0.0.1:{server.link_port}"]
    return Child("superexec", [*command, "--root-certificates", "ca.crt"], folder, alone=False)


def supernode(folder: Path, node: Node, data: str, address: str) -> Child:
    """A node's SuperNode: it calls the server, and starts the client app for each message."""
    state = folder.resolve() / "state"
    given = {"client": node.client, "name": node.name, "data": data, "state": str(state)}
    given |= {"device": node.device, "threads": node.threads}
    command = [tool("flower-supernode"), "--superlink", address, "--root-certificates", "ca.crt"]
    command += ["--auth-supernode-private-key", "node.key", "--port", str(node.runtime_port)]
    command += ["--node-config", pairs(given)]

    def ready(child: Child) -> bool:
        """A SuperNode is healthy before the server has let it in; only its log says that the server gave it an id."""
        return ADMITTED in child.said() and is_healthy(node.runtime_port)

    return Child("supernode", command, folder, ready=ready)


def is_healthy(port: int, authority: Path | None = None) -> bool:
    """Return whether a Flower program answers GET /health on this loopback port, over TLS if *authority* is given."""
    if authority is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_SECONDS)
    else:
        context = ssl.create_default_context(cafile=str(authority))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HEALTH_SECONDS, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def pairs(values: Mapping[str, Any]) -> str:
    """key=value words as Flower reads them: each value a TOML literal."""
    return " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def refusal(said: str) -> str | None:
    """What a SuperNode's last words mean, or None."""
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "does not trust the server: its certificate was not signed by the authority of this folder's ca.crt"
    if "code: 2004" in said or "code: 2001" in said or "Invalid SuperNode authentication" in said:
        return (
            "was refused by the server: this node's key is not registered there, or the same key is connected already "
            "(the server notices a lost node after a minute)"
        )
    if "terminated gracefully" in said and ADMITTED not in said:  # it ends so, without a reason, on HTTP 401
        return (
            "ended by itself: the server did not accept its signature, most likely because this machine's clock is "
            "more than 5 s ahead of the server's or 300 s behind; set both clocks by NTP (timedatectl set-ntp true)"
        )
    if "address already in use" in said:
        return "could not have its port: change runtime_port in node.toml"
    return None


def connect(folder: Path, server: Server) -> None:
    """Tell Flower's commands where this server is, in the FLWR_HOME of the server's folder."""
    lines = ["[superlink]", f'default = "{LINK}"', "", f"[superlink.{LINK}]"]
    lines += [f'address = "127.0.0.1:{server.link_port}"']
    lines += [f"root-certificates = {json.dumps(str(folder.resolve() / 'ca.crt'))}", ""]
    write_text(folder / "flower" / "config.toml", "\n".join(lines))


def ask(folder: Path, *words: str) -> dict[str, Any]:
    """The JSON answer of `flwr …`, its refusal included: success says which."""
    done = subprocess.run(
        [tool("flwr"), *words, "--format", "json"],
        capture_output=True,
        text=True,
        env=environment(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    begin = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[begin:])
    except ValueError as error:
        words_of = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
        raise FedBMError(f"flwr {words[0]} failed; it said: {words_of[-1]}") from error
    return answer


def must(answer: Mapping[str, Any], doing: str) -> Mapping[str, Any]:
    if not answer.get("success"):
        last = str(answer.get("error-message", "")).strip().splitlines() or ["nothing"]
        raise FedBMError(f"the SuperLink did not agree to {doing}; it said: {last[-1]}")
    return answer


def begin_run(folder: Path, app: Path, values: Mapping[str, Any]) -> str:
    """Start the app at the SuperLink; Flower's id of the run."""
    answer = must(ask(folder, "run", str(app), LINK, "-c", pairs(values)), "start the run")
    return str(answer["run-id"])


def runs(folder: Path) -> list[dict[str, Any]]:
    """The runs the SuperLink knows, the latest first."""
    found: list[dict[str, Any]] = list(must(ask(folder, "ls", LINK), "list its runs")["runs"])
    return sorted(found, key=lambda run: str(run["pending-at"]), reverse=True)


def run_state(folder: Path, run: str) -> tuple[str, str]:
    """(status, its details) of one run."""
    found = next((r for r in runs(folder) if r["run-id"] == run), None)
    return (str(found["status"]), str(found["status-details"])) if found else ("unknown", "")


def is_alive(folder: Path) -> bool:
    """Whether a server app of this SuperLink is at work on this machine."""
    return any("flwr-serverapp" in program for program in programs(folder))


def end_run(folder: Path, run: str) -> None:
    ask(folder, "stop", run, LINK)
