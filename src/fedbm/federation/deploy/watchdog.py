"""When the process that started a federation is gone, however it went, end all that it started.

Run alone (`python -I -S watchdog.py MARK`), with the standard library only. Its standard input is a pipe whose other
end only the starter holds: end of file means that the starter is no more, also after kill -9. Flower's own processes
end only partly when their parent does: the app at work continues, detached.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "FEDBM_FEDERATION"  # the variable every process of a federation carries


def marked(mark: str) -> list[int]:
    """Ids of the running processes, this one aside, whose environment carries *mark*; [] where there is no /proc."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            carries = wanted in (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # gone since, or another user's
            continue
        if carries and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def end_marked(mark: str, grace: float = 5.0) -> list[int]:
    """Ask every marked process to end, wait, then make those that are left; the ids of all that were there."""
    ended: set[int] = set()
    deadline = time.monotonic() + grace
    while left := marked(mark):
        late = time.monotonic() > deadline
        for pid in left:
            if late or pid not in ended:
                ended.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)
    return sorted(ended)


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with its starter, not before
        signal.signal(name, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
