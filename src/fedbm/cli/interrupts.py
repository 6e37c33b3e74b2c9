"""Ctrl-C while modules are imported, which takes PyTorch seconds.

A KeyboardInterrupt raised there may reach the start-up code of a C extension, which drops it and goes on with half a
NumPy, or makes an ImportError of it. So none is raised within an import.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], None]
AGAIN = 0.05  # seconds until an import is looked at again


@contextmanager
def on_interrupt(handler: Handler) -> Iterator[None]:
    """*handler* in place of Python's own; whoever has Ctrl-C ignored, as a script's `… &` does, keeps it so."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or not _heard_here():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def hear_no_more() -> None:
    """For the end of a process that says it was interrupted: once more would be a traceback of what Python tidies."""
    if _heard_here():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _heard_here() -> bool:
    """Signals are the main thread's."""
    return threading.current_thread() is threading.main_thread()


def end_with(sentence: str) -> Handler:
    """End the process there and then: for its first seconds, when nothing has begun that needs an orderly end."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        os.write(2, f"{sentence}\n".encode())
        os._exit(130)

    return end


def raise_after_imports(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt now or, within an import, as soon as it is over."""
    if not _importing(frame):
        raise KeyboardInterrupt
    waiting = threading.Timer(AGAIN, signal.pthread_kill, (threading.main_thread().ident, number))
    waiting.daemon = True
    waiting.start()


def _importing(frame: FrameType | None) -> bool:
    """Whether *frame* is within an import that the command began: one around the command ends after it."""
    while frame is not None and frame.f_globals.get("__name__") != "fedbm.cli.main":
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
