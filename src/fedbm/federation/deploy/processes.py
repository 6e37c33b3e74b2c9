"""Processes of a federation: started in groups of their own, marked, kept alive, and ended without a trace.

    FEDBM_FEDERATION=<folder>   stands in the environment of each, and of all that those start
    <folder>/pids/<role>.json   who is running: process id and its start time, so that a reused id is not mistaken
    <folder>/logs/<role>.log    what it says

Flower detaches its workers, so neither a process group nor a parent knows them all: the mark does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedbm.errors import FedBMError
from fedbm.federation.deploy import watchdog
from fedbm.utils.io import write_json

QUIET = {  # Flower telephones home, looks for updates and installs packages at run time, unless told not to
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
HASTE = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # seconds between looks for work; Flower's own is 1
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before a restart: doubled while it fails, at most


def environment(folder: Path) -> dict[str, str]:
    """This process's environment for a role that lives in *folder*: quiet, marked, with a home of its own."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {watchdog.MARK: str(folder.resolve()), "FLWR_HOME": str(folder.resolve() / "flower"), "PATH": tools}
    return {**os.environ, **QUIET, **HASTE, **own, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


@dataclass
class Child:
    """One program kept running: its command, where it lives, and what is to be done when it dies."""

    role: str
    command: Sequence[str]
    folder: Path
    alone: bool = True  # what it had started is ended before it is started again
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    log_begin: int = 0  # where in its log the latest start begins
    asked: bool = False  # to end
    wait: float = FIRST_WAIT
    not_before: float = 0.0
    ready: Callable[[Child], bool] = field(default=lambda child: True)

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.role}.log"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as stream:
            self.log_begin = stream.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment(self.folder),
                cwd=self.folder,
                start_new_session=True,
            )
        self.starts, self.asked = self.starts + 1, False
        write_json(pid_file(self.folder, self.role), {"pid": self.process.pid, "born": born(self.process.pid)})

    def said(self) -> str:
        """What it has written since its latest start."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_begin)
            return stream.read().decode(errors="replace")

    def keep(self) -> bool:
        """Start it again if it has died and its time has come; True if that happened."""
        if self.alive:
            return False
        if self.not_before == 0.0:
            self.not_before = time.monotonic() + self.wait
            if self.alone:
                watchdog.end_marked(str(self.folder.resolve()))
        if time.monotonic() < self.not_before:
            return False
        self.wait = min(2 * self.wait, LONGEST_WAIT)
        self.not_before = 0.0
        self.start()
        return True

    def ask_to_end(self) -> None:
        """One SIGTERM to it alone: a second would cut short Flower's farewell to the server."""
        if self.alive and self.process is not None and not self.asked:
            self.asked = True
            os.kill(self.process.pid, signal.SIGTERM)

    def end(self, grace: float = 8.0) -> None:
        """End it, and then everything with its mark, also what it detached."""
        self.ask_to_end()
        if self.process is not None:
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        watchdog.end_marked(str(self.folder.resolve()))
        pid_file(self.folder, self.role).unlink(missing_ok=True)


def wait_until_ready(child: Child, seconds: float, refused: Callable[[str], str | None]) -> None:
    """Return when *child* is ready; FedBMError with what *refused* makes of its words when it died or took too long."""
    deadline = time.monotonic() + seconds
    while not (child.alive and child.ready(child)):
        dead = not child.alive
        if dead or time.monotonic() > deadline:
            why = refused(child.said()) or ("ended at once" if dead else f"was not ready after {seconds:.0f} s")
            raise FedBMError(f"{child.role} {why}; all it said is in {child.log}")
        time.sleep(0.1)


def guard(folders: Sequence[Path]) -> list[subprocess.Popen[bytes]]:
    """Watchdogs for these folders' processes: they act when this process is gone, even if it is killed."""
    command = [sys.executable, "-I", "-S", watchdog.__file__]
    return [
        subprocess.Popen(
            [*command, str(folder.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for folder in folders
    ]


def dismiss(guards: Sequence[subprocess.Popen[bytes]]) -> None:
    for watch in guards:
        assert watch.stdin is not None
        watch.stdin.close()
        watch.wait()


def running(folder: Path) -> Mapping[str, int]:
    """role → process id of what runs in *folder*, by its pid files; files of the dead are not counted."""
    found = {}
    for path in sorted((folder / "pids").glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            noted = json.loads(path.read_text(encoding="utf-8"))
            if noted["born"] == born(noted["pid"]) is not None:
                found[path.stem] = int(noted["pid"])
    return found


def check_up(folder: Path) -> None:
    """FedBMError unless the SuperLink of the server in *folder* runs."""
    if "superlink" not in running(folder):
        raise FedBMError(f"the server of {folder} is not up: 'fedbm federation server {folder}' starts it")


def programs(folder: Path) -> list[str]:
    """The command lines of all that carries this folder's mark."""
    found = []
    for pid in watchdog.marked(str(folder.resolve())):
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def end_all(folder: Path) -> int:
    """End whatever runs in *folder*, whoever started it: its supervisor first, so that nothing is restarted."""
    seen = running(folder)
    if "supervisor" in seen and seen["supervisor"] != os.getpid():
        os.kill(seen["supervisor"], signal.SIGTERM)
        for _ in range(150):
            if "supervisor" not in running(folder):
                break
            time.sleep(0.1)
        else:
            os.kill(seen["supervisor"], signal.SIGKILL)
    left = watchdog.end_marked(str(folder.resolve()))
    for path in (folder / "pids").glob("*.json"):
        path.unlink(missing_ok=True)
    return len({*seen.values(), *left})


def pid_file(folder: Path, role: str) -> Path:
    return folder / "pids" / f"{role}.json"


def born(pid: int) -> str | None:
    """When a process began, as the kernel counts; None if there is none. Elsewhere than on Linux: whether it is."""
    try:
        if Path("/proc").is_dir():
            after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            return None if after_name[0] == "Z" else after_name[19]
        os.kill(pid, 0)
    except OSError:
        return None
    return "there"


def check_free(port: int, what: str) -> None:
    """FedBMError if something listens on this port of this machine already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise FedBMError(
                f"port {port} of this machine, which {what} is to use, is taken ({error.strerror}); "
                "'fedbm federation stop' ends what was left running, or choose another port"
            ) from error
