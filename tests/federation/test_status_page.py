"""Where a run stands: read from its files, drawn for a terminal and for a browser, and served read-only."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedbm.cli.federation_progress import StatusLog, draw_status
from fedbm.errors import FedBMError
from fedbm.federation.server.run_status import format_age, format_duration, read_status
from fedbm.federation.server.status_page import STALE_SECONDS, is_loopback, make_page_server, render_page
from fedbm.utils.metrics import NAMES

NOW = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)


def node(
    client: int | None, name: str, state: str, missed_deadlines: int = 0, rejected: str | None = None
) -> dict[str, Any]:
    seen = None if client is None else (NOW - timedelta(seconds=5)).isoformat()
    facts = {"client": client, "name": name, "state": state, "missed_deadlines": missed_deadlines}
    return {**facts, "last_seen": seen, "rejected": rejected}


def write(folder: Path, done: int = 6, **more: Any) -> Path:
    """A server's folder with a run after *done* of 20 rounds of 30 s."""
    status: dict[str, Any] = {
        "format": 1,
        "run": "fedbm-digits-s0-0123456789ab",
        "round": done + 1,
        "rounds": 20,
        "phase": "train",
        "nodes": [
            node(0, "hospital-1", "answered"),
            node(1, "hospital-2", "asked"),
            node(2, "hospital-3", "silent", 2),
        ],
        "val": {"accuracy": 0.815},
        "test": {"accuracy": 0.79},
        "why": None,
        "started": (NOW - timedelta(minutes=3)).isoformat(),
        "updated": NOW.isoformat(),
    }
    run = folder / "state" / "runs" / status["run"]
    run.mkdir(parents=True, exist_ok=True)
    (folder / "state" / "status.json").write_text(json.dumps(status | more))
    records = [
        {
            "round": r,
            "loss": {},
            "dropped": [],
            "generator": None,
            "personal": None,
            "bytes": {"sent": 0, "received": 0},
            "seconds": {"total": 30.0},
            "val": {**dict.fromkeys(NAMES, 0.5), "accuracy": 0.9 * r / (r + 2)} if r != 2 else None,
            "test": {**dict.fromkeys(NAMES, 0.5), "accuracy": 0.85 * r / (r + 2)} if r != 2 else None,
        }
        for r in range(1, done + 1)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (run / "rounds.jsonl").write_text(lines + '{"round": 99')  # the server app is just writing
    return folder


def test_time_left_is_guessed_from_the_latest_rounds(tmp_path: Path) -> None:
    found = read_status(write(tmp_path))
    assert found is not None
    assert (found.seconds_per_round, found.seconds_remaining) == (30.0, 14 * 30.0)
    assert (format_duration(found.seconds_remaining), format_duration(None)) == ("7 min 0 s", "–")
    assert format_age((NOW - timedelta(seconds=7)).isoformat(), NOW) == "7 s ago"
    assert (format_age(None), format_age((NOW - timedelta(hours=1)).isoformat(), NOW)) == ("not yet", "1 h 0 min ago")


def test_before_the_first_round_nothing_is_guessed(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    found = read_status(write(tmp_path, done=0, val=None, test=None))
    assert found is not None
    assert found.seconds_remaining is None
    assert "<dt>Time remaining</dt><dd>–</dd>" in render_page(found, NOW)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="has format 2; this version of fedbm reads format 1"):
        read_status(write(tmp_path, format=2))


def test_lines_tell_rounds_and_troubles_and_no_more(tmp_path: Path) -> None:
    console = Console(width=200, force_terminal=False)
    show = StatusLog(console)
    with console.capture() as capture:
        show(read_status(write(tmp_path, done=5, updated="2030-05-01T11:00:00+00:00")))  # of a run before
        for state in ("asked", "silent", "silent", "ready"):
            nodes = [node(0, "hospital-1", "ready"), node(1, "hospital-2", state)]
            show(read_status(write(tmp_path, done=6, nodes=nodes)))
    assert capture.get().splitlines() == [
        "hospital-1: ready",
        "hospital-2: ready",
        "round 6/20 done  training  val 81.5 %  test 79.0 %  30.0 s per round  remaining 7 min 0 s",
        "hospital-2: silent",
        "hospital-2: ready",
    ]


def test_a_rejected_answer_is_shown_once_with_its_node(tmp_path: Path) -> None:
    console = Console(width=120, force_terminal=False)
    nodes = [node(0, "hospital-1", "ready"), node(1, "hospital-2", "ready", rejected="round 6: its norm is 1e9")]
    show = StatusLog(console)
    with console.capture() as capture:
        show(read_status(write(tmp_path, done=5, updated="2030-05-01T11:00:00+00:00")))
        for _ in range(2):
            show(read_status(write(tmp_path, done=6, nodes=nodes)))
    sentence = "hospital-2: answer rejected in round 6: its norm is 1e9"
    assert capture.get().splitlines().count(sentence) == 1
    found = read_status(write(tmp_path, nodes=nodes))
    assert found is not None
    with console.capture() as capture:
        console.print(draw_status(found))
    assert sentence in capture.get()
    assert f"<p>{sentence}</p>" in render_page(found, NOW)


def test_the_terminal_shows_every_node(tmp_path: Path) -> None:
    console = Console(width=120)
    found = read_status(write(tmp_path, nodes=[node(0, "hospital-1", "asked"), node(None, "eve", "refused: size")]))
    assert found is not None
    with console.capture() as capture:
        console.print(draw_status(found))
    assert re.search(r"^0 +hospital-1 +asked +0 ", capture.get(), re.MULTILINE)
    assert re.search(r"^– +eve +refused: size +0 +not yet", capture.get(), re.MULTILINE)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    server = make_page_server(write(tmp_path), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield tmp_path, server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, method: str, path: str, host: str = "localhost") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_it_only_reads(served: tuple[Path, int]) -> None:
    folder, port = served
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        assert ask(port, method, "/")[0] == 501, method
    assert ask(port, "HEAD", "/")[2] == ""
    for path in ("/state/status.json", "/../server.key", "/%2e%2e/server.key", "/index.html", "/?x=1"):
        assert ask(port, "GET", path)[0] == 404, path
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_browser_is_told_to_load_nothing_else(served: tuple[Path, int]) -> None:
    _, port = served
    for path, kind in (("/", "text/html"), ("/status.css", "text/css"), ("/status.json", "application/json")):
        status, headers, body = ask(port, "GET", path)
        assert status == 200
        assert headers["Content-Type"] == f"{kind}; charset=utf-8"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self';")
        assert "unsafe" not in policy
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
        assert not re.findall(r"https?://|//[a-z]", body)
    assert "<script" not in ask(port, "GET", "/")[2]
    assert json.loads(ask(port, "GET", "/status.json")[2])["round"] == 7


def test_another_site_s_name_cannot_be_pointed_at_it(served: tuple[Path, int]) -> None:
    _, port = served
    assert ask(port, "GET", "/", host="evil.example")[0] == 421
    assert ask(port, "GET", "/", host="127.0.0.1")[0] == 200
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "10.0.0.1", "x")] == [
        *(True, True, True, False, False, False)
    ]


def test_what_nodes_are_called_is_text_and_never_markup(tmp_path: Path) -> None:
    found = read_status(write(tmp_path, nodes=[node(0, "<b>x</b>", "asked")], why="<i>no</i>"))
    text = render_page(found, NOW)
    assert "<b>" not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert "The run failed: &lt;i&gt;no&lt;/i&gt;" in text


def test_silence_is_said(tmp_path: Path) -> None:
    found = read_status(write(tmp_path))
    assert "has written nothing" not in render_page(found, NOW + timedelta(seconds=STALE_SECONDS - 1))
    assert "has written nothing for 2 min 1 s" in render_page(found, NOW + timedelta(seconds=STALE_SECONDS + 1))
    over = read_status(write(tmp_path, phase="finished"))
    assert "has written nothing" not in render_page(over, NOW + timedelta(days=1))
    assert "No run yet" in render_page(None)


def test_a_taken_port_is_one_sentence(served: tuple[Path, int]) -> None:
    with pytest.raises(FedBMError, match="cannot show the page at 127.0.0.1:.*; choose another port"):
        make_page_server(served[0], "127.0.0.1", served[1])


def test_the_page_has_an_ipv6_address_too(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with make_page_server(write(tmp_path), "::1", 0) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        connection = http.client.HTTPConnection("::1", server.server_address[1], timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        thread.join()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_shows_it(served: tuple[Path, int], tmp_path: Path) -> None:
    _, port = served
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--no-first-run", "--enable-logging=stderr", "--v=0"),
        *(f"--user-data-dir={tmp_path / 'chromium'}", "--dump-dom", f"http://127.0.0.1:{port}/"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    shown = re.sub(r"<[^>]+>", " ", done.stdout)
    assert "hospital-3" in shown
    assert "81.5" in shown
    assert "CONSOLE" not in done.stderr  # nothing on the page breaks the rule it came with


def test_metrics_are_in_the_text_format_of_prometheus(served: tuple[Path, int]) -> None:
    folder, port = served
    write(folder, nodes=[node(0, 'north "1"', "asked", 2), node(None, "eve", "refused: size")])
    status, headers, body = ask(port, "GET", "/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    lines = body.splitlines()
    assert all(re.fullmatch(r"# (HELP|TYPE) fedbm_\w+ .+|fedbm_\w+(\{\w+=\".*\"\})? [-+.\de]+", line) for line in lines)
    assert 'fedbm_missed_deadlines{node="north \\"1\\""} 2' in lines
    assert not any(line.startswith("fedbm_missed_deadlines") and "eve" in line for line in lines)
    assert {"fedbm_rounds_finished 6", "fedbm_rounds_planned 20", 'fedbm_nodes{state="refused"} 1'} <= set(lines)
    assert {'fedbm_phase{phase="train"} 1', 'fedbm_accuracy{split="test"} 0.79', "fedbm_round_seconds 30.0"} <= set(
        lines
    )
