"""audit.jsonl: what happened, one JSON line after the other, each with the SHA-256 of the line before it.

A line that is changed, removed or put in between breaks the chain at the next one, which verify() names. What the end
of the file was, nobody can tell from the file alone: so server and nodes tell each other the hash of their last line
with every message, and each writes down the other's. A line says who took part, sizes, digests and refusals; never
values, file names, paths or the text of an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedbm.engine.run_folder import finite
from fedbm.errors import FedBMError
from fedbm.utils.io import cannot_write

FORMAT = 1
START = "0" * 64  # what the first line has for the hash of the line before it


class Verified(NamedTuple):
    """A whole chain: how many lines, and the hash of the last one."""

    lines: int
    head: str


class Audit:
    """Append to one file; lines of several processes stay whole and in one chain."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def head(self) -> str:
        """The hash of the last line, as it stands now."""
        try:
            with self.path.open("rb") as stream:
                return _hash(_last_line(stream)[0])
        except FileNotFoundError:
            return START

    def append(self, event: str, **facts: Any) -> None:
        """Write one line and wait until it is on the disk."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as stream, alone(stream.fileno()):
                last, end = _last_line(stream)
                stream.truncate(end)  # half a line is what a killed process had not yet said
                line = {
                    "format": FORMAT,
                    "number": json.loads(last)["number"] + 1 if last else 1,
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "event": event,
                    **finite(facts),
                    "before": _hash(last),
                }
                stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise FedBMError(f"{self.path} does not end in a line of an audit: put it back, or move it away") from error


def verify(path: Path) -> Verified:
    """Follow the chain from the first line to the last; FedBMError names the first line that does not fit."""
    head, number = START, 0
    for number, raw, line in _lines(path):
        if line.get("number") != number or line.get("before") != head:
            raise FedBMError(f"line {number} of {path} does not follow the one before it: the audit was changed")
        head = _hash(raw)
    return Verified(number, head)


def read(path: Path) -> list[dict[str, Any]]:
    """Every line, checked."""
    verify(path)
    return [line for _, _, line in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise FedBMError(f"cannot read {path}: {error.strerror}") from error
    if whole and not whole.endswith(b"\n"):
        raise FedBMError(f"the last line of {path} is not whole: its process was killed while writing, or it was cut")
    for number, raw in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            line = json.loads(raw)
            if not isinstance(line, dict) or line["format"] != FORMAT:
                raise ValueError("no line of an audit")
        except (ValueError, KeyError) as error:
            raise FedBMError(f"line {number} of {path} is no line of an audit: it was changed") from error
        yield number, raw, line


def _last_line(stream: IO[bytes]) -> tuple[bytes, int]:
    """The last whole line, and where it ends."""
    size = stream.seek(0, os.SEEK_END)
    for length in (1 << 16, size):  # a line is some hundred bytes
        start = max(size - length, 0)
        stream.seek(start)
        tail = stream.read()
        end = tail.rfind(b"\n")
        before = tail.rfind(b"\n", 0, max(end, 0))
        if start == 0 or before >= 0:
            break
    return tail[before + 1 : max(end, 0)], start + end + 1


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else START


@contextmanager
def alone(descriptor: int) -> Iterator[None]:
    """Keep other processes from appending meanwhile, where the system has such locks."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
