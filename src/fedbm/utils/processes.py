"""Start processes of this package. A pipe connects each one with its parent."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any


def start_process(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Start target(pipe, *arguments) in a process; return the process and this end of the pipe.

    The process ignores Ctrl-C: the parent handles it and ends its children. The user's program is not imported again,
    so a script needs no `__main__` guard.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    script = sys.modules["__main__"]
    is_main_thread = threading.current_thread() is threading.main_thread()  # only it may set signal handlers
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main_thread else None
    sys.modules["__main__"] = ModuleType("__main__")  # multiprocessing imports what it finds here
    try:
        process.start()
    finally:
        sys.modules["__main__"] = script
        if is_main_thread:
            signal.signal(signal.SIGINT, before)
    theirs.close()
    return process, ours
