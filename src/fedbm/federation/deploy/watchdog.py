"""End everything that a supervisor started as soon as the supervisor is gone, even after kill -9.

Run as `python -I -S watchdog.py MARK`, with the standard library only. Standard input is a pipe from the supervisor,
so it ends when the supervisor does. Flower's own processes do not all end with their parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "FEDBM_FEDERATION"  # environment variable of every process of a federation


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start a watchdog for the processes of *folder*; closing its standard input triggers it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder.resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def find_marked(mark: str) -> list[int]:
    """Return the ids of all other processes with this mark in their environment; none without /proc."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def end_marked(mark: str, grace: float = 5.0) -> list[int]:
    """Send SIGTERM to every marked process, after *grace* seconds SIGKILL, and return their ids."""
    ended: set[int] = set()
    deadline = time.monotonic() + grace
    while remaining := find_marked(mark):
        late = time.monotonic() > deadline
        for pid in remaining:
            if late or pid not in ended:
                ended.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)
    return sorted(ended)


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
