"""Start the programs of a federation, watch them, and end them together with everything that they started.

    FEDBM_FEDERATION=<folder>   in the environment of each program and of everything that it starts
    FEDBM_ROLE=<role>           such as superlink or worker
    <folder>/supervisor.pid     locked by the process that started them, and contains its id
    <folder>/logs/<role>.log    their output

A program starts others, such as the server app, and can detach them. The variables identify them all. If a program
dies, the whole role ends, and systemd or the container starts it again.

Without a service, kill -9 of the supervisor would leave its programs. So it also starts this module as a program, the
watchdog, which ends them when the pipe from the supervisor closes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from fedbm.errors import FedBMError
from fedbm.utils.io import cannot_write, lock_file

MARK, ROLE = "FEDBM_FEDERATION", "FEDBM_ROLE"
LOCK = "supervisor.pid"
MAX_SHOWN = 300  # characters of a program's last output in an error


def environment(folder: Path, role: str = "") -> dict[str, str]:
    """Return the environment of a program of *folder*: without telemetry, marked, with its own FLWR_HOME.

    Without proxies, because Flower would send even its messages on loopback through them, and those have no TLS.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    off["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    own = {MARK: str(folder.resolve()), ROLE: role, "FLWR_HOME": str(folder.resolve() / "flower")}
    return {**inherited, **off, **own, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


@dataclass
class Child:
    """One program: its command, its folder, and how to find out that it is ready."""

    role: str
    command: Sequence[str]
    folder: Path
    ready: Callable[[Child], bool] = field(default=lambda child: True)
    process: subprocess.Popen[bytes] | None = None
    log_start: int = 0  # position in the log at which its output begins

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.role}.log"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, children: list[Child]) -> None:
        """Start the program and append it to *children*."""
        children.append(self)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as stream:
            self.log_start = stream.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment(self.folder, self.role),
                cwd=self.folder,
                start_new_session=True,
            )

    def end(self, grace: float = 8.0) -> None:
        """Send one SIGTERM, to this process only: a second one would interrupt Flower's sign-off. Wait, then kill."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:  # without /proc, end_marked() would not find it
                self.process.kill()
                self.process.wait()

    def output(self) -> str:
        """Return what it has written since its start."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            return stream.read().decode(errors="replace")


def wait_until_ready(child: Child, seconds: float, explain: Callable[[str], str | None] = lambda output: None) -> None:
    """Return when *child* is ready. If it dies or takes too long, raise FedBMError with *explain* of its output."""
    deadline = time.monotonic() + seconds
    while not (child.alive and child.ready(child)):
        if not child.alive or time.monotonic() > deadline:
            output = child.output().strip()
            why = explain(output) or f"did not start: {output[-MAX_SHOWN:]}"
            raise FedBMError(f"{child.role} {why}; its log is {child.log}")
        time.sleep(0.1)


@contextmanager
def supervise(folders: Sequence[Path]) -> Iterator[list[Child]]:
    """Yield a list for children. On exit end them and everything that they started.

    Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt. A watchdog cleans up if this process is killed.
    """
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(claim(folder))
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # SIGHUP under nohup
        before = {number: signal.signal(number, signal.default_int_handler) for number in heeded}
        watchdog = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *(str(folder.resolve()) for folder in folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        children: list[Child] = []
        try:
            yield children
        finally:
            for number in before:  # a second Ctrl-C must not interrupt the clean-up
                signal.signal(number, signal.SIG_IGN)
            for child in reversed(children):  # nodes sign off, so the SuperLink must still be running
                child.end()
            for folder in folders:
                end_marked(folder)
            watchdog.communicate()
            for number, handler in before.items():
                signal.signal(number, handler)


def claim(folder: Path) -> TextIO:
    """Lock a folder for this process, until the returned file is closed; raise FedBMError if it is in use.

    Whatever a killed supervisor left running there is ended.
    """
    try:
        stream = (folder / LOCK).open("a", encoding="utf-8")
        while not _lock(stream):  # find_supervisor() has a lock for a moment
            if pid := find_supervisor(folder):
                stream.close()
                raise FedBMError(f"{folder} is in use by process {pid}; 'fedbm federation stop {folder}' ends it")
        stream.truncate(0)  # at once, so that nobody takes the id of an earlier supervisor for this one
        stream.write(str(os.getpid()))
        stream.flush()
    except OSError as error:
        raise cannot_write(folder / LOCK, error) from error
    end_marked(folder)
    for leftover in (folder / "state").glob(".*.part"):
        leftover.unlink(missing_ok=True)
    return stream


def find_supervisor(folder: Path) -> int | None:
    """Return the id of the process that started the programs of *folder*, or None if it is gone."""
    with suppress(FileNotFoundError), (folder / LOCK).open(encoding="utf-8") as stream:
        if not _lock(stream, shared=True):  # shared: another process that asks is not a supervisor
            return int(stream.read() or 0) or None
    return None


def _lock(stream: TextIO, shared: bool = False) -> bool:
    """Lock a file, and return False if another process has locked it."""
    try:
        lock_file(stream.fileno(), shared=shared)
    except BlockingIOError:
        return False
    return True


def find_marked(folder: Path) -> dict[int, str]:
    """Return process id → role of all other processes with the mark of *folder*; none without /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            lines = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            values = {name: value for name, _, value in (line.partition("=") for line in lines)}
            if values.get(MARK) == str(folder.resolve()) and int(entry.name) != os.getpid():
                found[int(entry.name)] = values.get(ROLE, "")
    return found


def end_marked(folder: Path, grace: float = 5.0) -> None:
    """Send SIGTERM to every marked process, and after *grace* seconds SIGKILL."""
    ended: set[int] = set()
    deadline = time.monotonic() + grace
    while remaining := find_marked(folder):
        late = time.monotonic() > deadline
        for pid in remaining:
            if late or pid not in ended:
                ended.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)


def running(folder: Path) -> dict[str, int]:
    """Return role → process id of the programs that run in *folder*."""
    found = {role: pid for pid, role in sorted(find_marked(folder).items(), reverse=True) if role}
    if supervisor := find_supervisor(folder):
        found["supervisor"] = supervisor
    return found


def check_up(folder: Path) -> None:
    """Raise FedBMError unless the server in *folder* is running."""
    if find_supervisor(folder) is None:
        raise FedBMError(f"the server of {folder} is not up: 'fedbm federation server {folder}' starts it")


def check_free(port: int) -> None:
    """Raise FedBMError if another program uses this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise FedBMError(f"the server needs port {port} of this machine, but cannot use it: {error}") from error


def end_all(folder: Path, patience: float = 15.0) -> None:
    """End everything that runs in *folder*, the supervisor first."""
    deadline = time.monotonic() + patience
    if supervisor := find_supervisor(folder):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(supervisor, signal.SIGTERM)
            while find_supervisor(folder) == supervisor:
                if time.monotonic() > deadline:
                    os.kill(supervisor, signal.SIGKILL)
                time.sleep(0.1)
    end_marked(folder)


if __name__ == "__main__":  # the watchdog, which ends only when the supervisor does
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for name in sys.argv[1:]:
        end_marked(Path(name))
