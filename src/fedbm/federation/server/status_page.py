"""The operator's page: the state of the run, read-only, without scripts, by default only for this machine.

It answers GET and HEAD of / (the page), /status.css, /status.json and /metrics (for Prometheus). Other paths get
404, other methods 501. The headers allow the browser to load nothing but the style sheet. On loopback, the page
answers only requests that name a loopback host, which prevents DNS rebinding.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.federation.deploy.federation_folders import render
from fedbm.federation.protocol.messages import SCORED
from fedbm.federation.server.run_status import (
    PHASES,
    RunStatus,
    format_age,
    format_duration,
    read_status,
    seconds_since,
)

STALE_SECONDS = 120  # the page shows a warning if the server app has written nothing for longer
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Refresh": "3",  # seconds
}
NODE_STATES = ("ready", "asked", "answered", "silent", "resting", "refused")


def make_page_server(folder: Path, address: str, port: int) -> ThreadingHTTPServer:
    """Return a web server for the page of the server in *folder*; serve_forever() runs it."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedbm", ""

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
            if is_loopback(address) and not is_loopback(host):
                answer = 421, "text/plain", "not here\n"
            else:
                try:
                    answer = find_page(self.path, folder)
                except FedBMError as error:
                    answer = 500, "text/plain", f"{error}\n"
            status, kind, text = answer
            body = text.encode()
            own = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
            self.send_response(status)
            for name, value in {**HEADERS, **own}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    try:
        return Server((address, port), Handler)
    except OSError as error:
        raise FedBMError(f"cannot show the page at {address}:{port}: {error.strerror}; choose another port") from error


def find_page(path: str, folder: Path) -> tuple[int, str, str]:
    """Return the status, media type and text of the answer to a request."""
    found = read_status(folder)
    if path == "/":
        return 200, "text/html", render_page(found)
    if path == "/status.css":
        return 200, "text/css", (files("fedbm.federation") / "templates" / "status.css").read_text(encoding="utf-8")
    if path == "/status.json":
        return 200, "application/json", json.dumps(found.status if found else None)
    if path == "/metrics":
        return 200, "text/plain; version=0.0.4", render_metrics(found)
    return 404, "text/plain", "not here\n"


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def render_metrics(found: RunStatus | None) -> str:
    """Return the state of the run in the text format of Prometheus."""
    if found is None:
        return ""
    status, nodes = found.status, [node for node in found.status["nodes"] if node["client"] is not None]
    states = Counter({"refused": len(status["nodes"]) - len(nodes)}) + Counter(node["state"] for node in nodes)
    phases = (*PHASES, "done", "finished", "failed")
    scores = {side: status[side]["accuracy"] for side in SCORED if status[side]}
    updated = datetime.fromisoformat(status["updated"]).timestamp()
    samples: list[tuple[str, str, str, Mapping[str, float | None]]] = [  # name, meaning, label, value by label
        ("rounds_finished", "Finished rounds of the run.", "", {"": len(found.rounds)}),
        ("rounds_planned", "Rounds of the whole run.", "", {"": status["rounds"]}),
        ("phase", "1 for the present phase.", "phase", {phase: int(status["phase"] == phase) for phase in phases}),
        ("nodes", "Nodes by state.", "state", {state: states[state] for state in NODE_STATES}),
        ("missed_deadlines", "In a row.", "node", {node["name"]: node["missed_deadlines"] for node in nodes}),
        ("accuracy", "Latest accuracy.", "split", scores),
        ("round_seconds", "Mean duration of the latest rounds.", "", {"": found.seconds_per_round}),
        ("updated_seconds", "Unix time of the latest sign of life.", "", {"": updated}),
    ]
    lines = []
    for name, meaning, label, values in samples:
        lines += [f"# HELP fedbm_{name} {meaning}", f"# TYPE fedbm_{name} gauge"]
        for key, value in values.items():
            labels = f"{{{label}={json.dumps(key, ensure_ascii=False)}}}" if label else ""
            lines += [] if value is None else [f"fedbm_{name}{labels} {value}"]
    return "\n".join([*lines, ""])


def render_page(found: RunStatus | None, now: datetime | None = None) -> str:
    """Return the page as HTML."""
    if found is None:
        return render("status.html.j2", escape=True, status=None)
    silence = seconds_since(found.status["updated"], now)
    return render(
        "status.html.j2",
        escape=True,
        status=found.status,
        share=100 * len(found.rounds) / max(1, int(found.status["rounds"])),
        remaining=format_duration(found.seconds_remaining),
        pace=format_duration(found.seconds_per_round),
        phase=found.phase,
        silent=format_duration(silence) if silence > STALE_SECONDS and not found.over else None,
        since=lambda moment: format_age(moment, now),
    )
