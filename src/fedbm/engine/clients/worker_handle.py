"""A client process as its parent sees it: started, told, heard, ended. What is said is in `worker_process.py`."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from fedbm.errors import FedBMError

_BOOT = (  # no module of the user's program is run again, as multiprocessing would: a script needs no guard
    "import json, sys; orders = sys.stdin.buffer; sys.path[:] = json.loads(orders.readline()); "
    "work = orders.read(int(orders.readline())); from fedbm.engine.clients.worker_process import main; main(work)"
)


class Worker:
    """A client process, and a thread that hears it."""

    def __init__(self, work: bytes, news: queue.SimpleQueue[tuple[Worker, bytes]]) -> None:
        # a session of its own: Ctrl-C reaches the parent alone, which ends its processes and says so once
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._write(json.dumps([str(path) for path in sys.path]).encode() + b"\n%d\n" % len(work) + work)
        threading.Thread(target=self._listen, args=(news,), daemon=True).start()

    def tell(self, **order: Any) -> None:
        self._write(json.dumps(order).encode() + b"\n")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def lost(self, client: int | None) -> FedBMError:
        """The sentence for a process that ended by itself or was killed."""
        status = self._process.wait()
        did = "waited for a client" if client is None else f"trained client {client}"
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        why = " (is memory short? fewer workers need less)" if status == -9 else ""
        return FedBMError(f"the process that {did} {how}{why}; run this again to go on from the last checkpoint")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, as the listener is about to say
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _listen(self, news: queue.SimpleQueue[tuple[Worker, bytes]]) -> None:
        """Pass on every line, and an empty one when there will be no more."""
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                news.put((self, line))
        news.put((self, b""))


class CannotLeave(Exception):
    """A method or body could not be read by another process; the message says why."""


def heard(line: bytes) -> dict[str, Any]:
    """The answer in a line, or what went wrong where it was trained."""
    answer: dict[str, Any] = json.loads(line)
    if "cannot" in answer:
        raise CannotLeave(answer["cannot"])
    if "failed" in answer:
        raise FedBMError(answer["failed"])
    if "broken" in answer:
        raise RuntimeError(f"in a client process:\n{answer['broken']}")
    return answer
