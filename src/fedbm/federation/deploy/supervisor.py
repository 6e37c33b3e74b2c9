"""Start the programs of a federation, watch them, and end them together with everything that they started.

    FEDBM_FEDERATION=<folder>   an environment variable of each program and of everything that it starts
    <folder>/pids/<role>.json   process id and start time of each running program
    <folder>/logs/<role>.log    its output

Flower detaches some of its processes, so neither the process group nor the parent identifies them all. The variable
does. If a node's worker dies, it is replaced. If another program dies, the whole role ends, and systemd or the
container starts it again.

Without a service, kill -9 of the supervisor would leave its programs. So it also starts this module as a program, the
watchdog, which ends them when the pipe from the supervisor closes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedbm.errors import FedBMError
from fedbm.utils.io import write_json

MARK = "FEDBM_FEDERATION"  # environment variable of every process of a federation
FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a program of *folder*: without telemetry, marked, with its own FLWR_HOME.

    Without proxies, because Flower would send even its messages on loopback through them, and those have no TLS.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {MARK: str(folder.resolve()), "FLWR_HOME": str(folder.resolve() / "flower"), "PATH": tools}
    return {**inherited, **FLOWER_SETTINGS, **own, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


@dataclass
class Child:
    """One program: its command, its folder, and how to find out that it is ready."""

    role: str
    command: Sequence[str]
    folder: Path
    ready: Callable[[Child], bool] = field(default=lambda child: True)
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0  # time of the latest start
    quick_deaths: int = 0  # of a worker, in a row
    log_start: int = 0  # position in the log at which the latest start begins

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.role}.log"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.started = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as stream:
            self.log_start = stream.tell()
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=environment(self.folder),
                    cwd=self.folder,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise FedBMError(f'{error.filename} is missing: pip install "fedbm[flower]" here') from error
        write_pid(self.folder, self.role, self.process.pid)

    def output(self) -> str:
        """Return what it has written since its latest start."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            return stream.read().decode(errors="replace")


def wait_until_ready(child: Child, seconds: float, explain: Callable[[str], str | None] = lambda output: None) -> None:
    """Return when *child* is ready. If it dies or takes too long, raise FedBMError with *explain* of its output."""
    deadline = time.monotonic() + seconds
    while not (child.alive and child.ready(child)):
        dead = not child.alive
        if dead or time.monotonic() > deadline:
            why = explain(child.output()) or ("ended at once" if dead else f"was not ready after {seconds:.0f} s")
            raise FedBMError(f"{child.role} {why}; its log is {child.log}")
        time.sleep(0.1)


@contextmanager
def supervise(folders: Sequence[Path]) -> Iterator[list[Child]]:
    """Yield a list for children. On exit end them and everything that they started.

    Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt. A watchdog cleans up if this process is killed.
    """
    for folder in folders:
        if busy := running(folder):
            raise FedBMError(
                f"{folder} is in use: {next(iter(busy))} is running; 'fedbm federation stop {folder}' ends it"
            )

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
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
        for folder in folders:
            write_pid(folder, "supervisor", os.getpid())
        yield children
    finally:
        for number in before:  # a second Ctrl-C must not interrupt the clean-up
            signal.signal(number, signal.SIG_IGN)
        nodes = [child for child in children if child.role == "supernode"]
        end_children(nodes)  # nodes sign off, so the SuperLink must still be running
        end_children([child for child in children if child not in nodes])
        watchdog.communicate()
        for folder in folders:
            pid_file(folder, "supervisor").unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def end_children(children: Sequence[Child], grace: float = 8.0) -> None:
    """Send each child one SIGTERM, wait, then end everything with the mark of its folder.

    Only the child gets the signal: a second one, from its own parent, would interrupt Flower's sign-off.
    """
    processes = [child.process for child in children if child.process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for child in children:
        end_marked(child.folder)
        pid_file(child.folder, child.role).unlink(missing_ok=True)


def find_marked(folder: Path) -> list[int]:
    """Return the ids of all other processes with the mark of *folder*; none without /proc."""
    wanted = f"{MARK}={folder.resolve()}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def end_marked(folder: Path, grace: float = 5.0) -> list[int]:
    """Send SIGTERM to every marked process, after *grace* seconds SIGKILL, and return their ids."""
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
    return sorted(ended)


def running(folder: Path) -> Mapping[str, int]:
    """Return role → process id of the programs that run in *folder*, by its pid files."""
    found = {}
    for path in sorted((folder / "pids").glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["born"] == start_time(known["pid"]) is not None:
                found[path.stem] = int(known["pid"])
    return found


def check_up(folder: Path) -> None:
    """Raise FedBMError unless the SuperLink of the server in *folder* is running."""
    if "superlink" not in running(folder):
        raise FedBMError(f"the server of {folder} is not up: 'fedbm federation server {folder}' starts it")


def programs(folder: Path) -> list[str]:
    """Return the command lines of all processes with the mark of *folder*."""
    found = []
    for pid in find_marked(folder):
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def end_all(folder: Path) -> int:
    """End everything that runs in *folder*, the supervisor first, and return the number of processes."""
    seen = running(folder)
    if "supervisor" in seen and seen["supervisor"] != os.getpid():
        os.kill(seen["supervisor"], signal.SIGTERM)
        for _ in range(150):
            if "supervisor" not in running(folder):
                break
            time.sleep(0.1)
        else:
            os.kill(seen["supervisor"], signal.SIGKILL)
    ended = end_marked(folder)
    for path in (folder / "pids").glob("*.json"):
        path.unlink(missing_ok=True)
    return len({*seen.values(), *ended})


def pid_file(folder: Path, role: str) -> Path:
    return folder / "pids" / f"{role}.json"


def write_pid(folder: Path, role: str, pid: int) -> None:
    write_json(pid_file(folder, role), {"pid": pid, "born": start_time(pid)})


def start_time(pid: int) -> str | None:
    """Return when a process started, or None if it does not run. A reused process id has another start time.

    Without /proc, return a constant for every process that runs.
    """
    try:
        if Path("/proc").is_dir():
            after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            return None if after_name[0] == "Z" else after_name[19]
        os.kill(pid, 0)
    except OSError:
        return None
    return "there"


def check_free(port: int, user: str) -> None:
    """Raise FedBMError if another program already uses this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise FedBMError(
                f"{user} needs port {port} on this machine, but it is taken ({error.strerror}); "
                "end old processes with 'fedbm federation stop', or choose another port"
            ) from error


if __name__ == "__main__":  # the watchdog
    sys.stdin.buffer.read()
    for name in sys.argv[1:]:
        end_marked(Path(name))
