"""The operator's page: where the run stands, read-only, from this machine alone, without a script.

It answers GET / (the page), /status.css and /status.json; every other path is 404, every other method 405. The page
loads nothing but its own style sheet, and the browser is told so. Bound to loopback it answers only requests that name
loopback, so that no other site's name can be pointed at it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.federation.server.run_status import Standing, ago, clock, read_standing

REFRESH = 3  # seconds
STALE = 120  # seconds of silence after which the page says so
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
WIDTH, HEIGHT = 640, 200  # of the curve


def make_page_server(folder: Path, address: str, port: int) -> ThreadingHTTPServer:
    """A server for the page of the server in *folder*; serve_forever() runs it."""

    class Handler(PageHandler):
        site = folder
        local = is_loopback(address)

    try:
        return ThreadingHTTPServer((address, port), Handler)
    except OSError as error:
        raise FedBMError(f"cannot show the page at {address}:{port}: {error.strerror}; choose another port") from error


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PageHandler(BaseHTTPRequestHandler):
    site: Path
    local: bool
    server_version, sys_version = "fedbm", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # every other method
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self._send(405, "text/plain; charset=utf-8", b"only GET\n", {"Allow": "GET, HEAD"})

    def _answer(self, with_body: bool) -> None:
        named = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        if self.local and not is_loopback(named):
            self._send(421, "text/plain; charset=utf-8", b"not here\n", {}, with_body)
            return
        try:
            found = read_standing(self.site)
            if self.path == "/":
                kind, body, more = "text/html", page(self.site.name, found), {"Refresh": str(REFRESH)}
            elif self.path == "/status.css":
                kind, body, more = "text/css", style(), {"ETag": hashlib.sha256(style().encode()).hexdigest()[:16]}
            elif self.path == "/status.json":
                kind, body, more = "application/json", json.dumps(found.status if found else None), {}
            else:
                self._send(404, "text/plain; charset=utf-8", b"not here\n", {}, with_body)
                return
        except FedBMError as error:
            self._send(500, "text/plain; charset=utf-8", f"{error}\n".encode(), {}, with_body)
            return
        self._send(200, f"{kind}; charset=utf-8", body.encode(), more, with_body)

    def _send(self, status: int, kind: str, body: bytes, more: Mapping[str, str], with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **more, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@cache
def style() -> str:
    return (files("fedbm.federation") / "templates" / "status.css").read_text(encoding="utf-8")


def page(name: str, found: Standing | None, now: datetime | None = None) -> str:
    """The whole page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(loader=PackageLoader("fedbm.federation"), undefined=StrictUndefined, autoescape=True)
    facts: dict[str, Any] = {"name": name, "status": None}
    if found is not None:
        facts |= {
            "status": found.status,
            "share": 100 * len(found.rounds) / max(1, int(found.status["rounds"])),
            "left": clock(found.seconds_left),
            "pace": clock(found.seconds_a_round),
            "phase": found.phase,
            "silent": found.age(now) if found.age(now) > STALE and not found.over else None,
            "curve": drawn(found),
            "width": WIDTH,
            "height": HEIGHT,
            "clock": clock,
            "since": lambda moment: ago(moment, now),
        }
    return made.get_template("status.html.j2").render(facts)


def drawn(found: Standing) -> list[dict[str, Any]]:
    """Validation and test accuracy as points of polylines: x over the planned rounds, y from 0 to 100 %."""
    planned = max(2, int(found.status["rounds"]))
    lines = []
    for side in ("val", "test"):
        points = [
            f"{(round_ - 1) / (planned - 1) * WIDTH:.1f},{(1 - accuracy) * HEIGHT:.1f}"
            for round_, accuracy in found.curve(side)
        ]
        if points:
            lines.append({"side": side, "points": " ".join(points), "last": points[-1].split(",")})
    return lines
