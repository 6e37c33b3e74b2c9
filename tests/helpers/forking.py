"""Real processes that are forked from this one, so that PyTorch, which takes two seconds, is imported already.

They can be killed and interrupted as those of a user, but are not new interpreters and inherit what a test has patched.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedbm.cli import main


def start_command(words: Sequence[str], **options: Any) -> Any:
    """Start `python -m fedbm WORDS`; *options* are those of subprocess.Popen."""

    def run() -> Any:
        tempfile.tempdir = None  # a test may have set another TMPDIR
        sys.argv = ["fedbm", *words]
        return main(list(words))

    return _fork([sys.executable, "-m", "fedbm", *words], run, options)


def _fork(command: Sequence[str], run: Callable[[], Any], options: Mapping[str, Any]) -> Any:
    return subprocess.Popen(command, preexec_fn=lambda: _execute(run), **options)


def _execute(run: Callable[[], Any]) -> None:
    """Run in the new process in place of the command, and end it."""
    status = 1
    try:
        gc.freeze()  # objects of the parent are never finalised here: their files are closed now
        gc.enable()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        sys.stdin, sys.stdout, sys.stderr = (open(file, mode, closefd=False) for file, mode in enumerate("rww"))  # noqa: SIM115
        context = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment,misc]
        status = run() or 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
