"""A whole federation on this machine, made of the commands that a user types: processes, TLS, keys, signals."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedbm.engine.checkpoint import load_tensors
from fedbm.federation.audit import verify
from fedbm.federation.deploy.settings_files import all_folders
from fedbm.federation.deploy.supervisor import end_all, find_marked
from fedbm.federation.federation_options import read_run_file
from fedbm.federation.protocol.packing import digest
from fedbm.runs.plan import make_plan
from fedbm.runs.runner import run, run_path

NODES = ("hospital-1", "hospital-2", "hospital-3")

_PORTS = itertools.count(20000 + os.getpid() % 1000 * 30, 5)

RUN = """
[data]
name = "digits"
size = 16
clients = 3
beta = 0.5
[model]
width = 8
stem = "3x3"
[method]
name = "{method}"
{options}
[train]
rounds = {rounds}
participation = 1.0
batch = 32
seed = 3
[engine]
device = "cpu"
threads = 1
[federation]
nodes = 3
min_updates = {min_updates}
deadline_s = {deadline}
evaluate = "server"
"""


class Deployment:
    """DIR with its run file and its data partitioned; everything that was started ends with it."""

    def __init__(
        self,
        folder: Path,
        method: str = "scaffold",
        options: str = "",
        rounds: int = 3,
        min_updates: int = 3,
        deadline: int = 300,
    ) -> None:
        self.folder, self.home = folder / "study", folder / "study" / "server"
        self.port = free_ports(4)
        self.fedbm("init", self.folder, "--nodes", "3", "--link-port", str(self.port))
        self.file = folder / "run.toml"
        told = {"method": method, "options": options, "rounds": rounds}
        self.file.write_text(RUN.format(**told, min_updates=min_updates, deadline=deadline), encoding="utf-8")
        self.fedbm("partition", self.folder, self.file)
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *ignored: object) -> None:
        for folder in all_folders(self.folder):
            end_all(folder)
        for process in self.started:
            process.wait(30)
        assert self.orphans() == []
        assert can_bind(self.port)

    def fedbm(self, task: str, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fedbm", "federation", task, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, task: str, *words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """A command that stays; its words go to a file beside DIR."""
        command = [sys.executable, "-m", "fedbm", "federation", task, *map(str, words)]
        out = self.folder.parent / f"{task}-{len(self.started)}.out"
        with out.open("w") as stream:
            made = subprocess.Popen(command, stdout=stream, stderr=stream, text=True, env={**os.environ, **(env or {})})
        made.words = lambda: out.read_text()  # type: ignore[attr-defined]
        self.started.append(made)
        return made

    def start_all(self) -> None:
        """The server and three nodes, each ready."""
        ready([self.start("server", self.folder)])
        ready([self.start("node", self.folder / name) for name in NODES])

    def restart(self, folder: Path) -> None:
        """Start a node until the server admits it, every 10 s as its service does."""
        for _ in range(12):
            node = self.start("node", folder)
            said = node.words  # type: ignore[attr-defined]
            wait_for(lambda: (node.poll(), said()), lambda now: now[0] is not None or "ready:" in now[1], 180)  # noqa: B023
            if node.poll() is None:
                return
            assert "was refused by the server" in said()
            time.sleep(10)
        raise AssertionError(said())

    def orphans(self) -> list[str]:
        return [role for folder in all_folders(self.folder) for role in find_marked(folder).values()]

    def status(self) -> dict[str, Any]:
        path = self.home / "state" / "status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"phase": "none", "round": 0}
        return found

    def until(self, holds: Callable[[dict[str, Any]], bool], seconds: float = 400) -> dict[str, Any]:
        """Wait for the status to say so."""
        return wait_for(self.status, holds, seconds)

    def training(self, round_: int) -> None:
        """Wait until this round's work is at every node."""
        self.until(lambda s: s["phase"] == "train" and s["round"] == round_ and all_asked(s))

    def finished(self, seconds: float = 500) -> None:
        found = self.until(lambda s: s["phase"] in ("finished", "failed"), seconds)
        assert found["phase"] == "finished", found["why"]

    def events(self, name: str, site: str = "server") -> list[dict[str, Any]]:
        path = self.folder / site / "state" / "audit.jsonl"
        return [line for line in verify(path).lines if line["event"] == name] if path.exists() else []

    def digests(self) -> list[str]:
        """Of the server's state after each round, as the audit has them; a round that was run again counts once."""
        by_round = {line["round"]: line["state"] for line in self.events("round")}
        return [by_round[round_] for round_ in sorted(by_round)]

    def final_digest(self) -> str:
        [path] = (self.home / "state" / "runs").glob("*/checkpoint.safetensors")
        return digest(load_tensors(path)[0])

    def records(self) -> list[dict[str, Any]]:
        [path] = (self.home / "state" / "runs").glob("*/rounds.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def digest_in_process(self, out: Path, method: Any = None) -> str:
        """Of the same run's last round, played in one process."""
        import dataclasses

        config, _ = read_run_file(self.file)
        config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, out=str(out)))
        if method is not None:
            config = dataclasses.replace(config, method=method)
        plan = make_plan(config)
        for _ in run(plan):
            pass
        return digest(load_tensors(run_path(plan) / "checkpoint.safetensors")[0])

    def kill(self, folder: str, role: str) -> int:
        """kill -9 the one process of this folder with this role; its id."""
        place = self.folder / folder
        [pid] = wait_for(lambda: pids_of(place, role), lambda found: len(found) == 1, 60)
        os.kill(pid, signal.SIGKILL)
        return pid


def pids_of(folder: Path, role: str) -> list[int]:
    return [pid for pid, own in find_marked(folder).items() if own == role]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def all_asked(status: Mapping[str, Any]) -> bool:
    return len(status["nodes"]) == 3 and all(node["state"] == "asked" for node in status["nodes"])


def ready(processes: list[subprocess.Popen[str]], seconds: float = 180) -> None:
    """Wait until each has said that it is ready."""
    for process in processes:
        said = process.words  # type: ignore[attr-defined]
        wait_for(lambda: (process.poll(), said()), lambda now: now[0] is not None or "ready:" in now[1], seconds)  # noqa: B023
        assert process.poll() is None, said()


def wait_for(look: Callable[[], Any], holds: Callable[[Any], bool], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {found}"
        time.sleep(0.2)
    return found


def free_ports(count: int) -> int:
    """The first of *count* neighbouring free ports, none of them given before."""
    while True:
        first = next(_PORTS)
        if all(can_bind(first + i) for i in range(count)):
            return first


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
