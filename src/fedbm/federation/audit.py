"""audit.jsonl: a log in which every JSON line contains the SHA-256 of the line before it.

A changed, removed or inserted line breaks the chain, and verify() names it. The file itself cannot show that lines at
its end were removed. So server and nodes exchange the hash of their last line with every message, and each records the
hash of the other. Lines contain participants, sizes, digests and refusals, but no values, file names, paths or error
texts.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedbm.engine.run_folder import replace_nonfinite
from fedbm.errors import FedBMError
from fedbm.utils.io import cannot_write, lock_file

FORMAT = 1
START = "0" * 64  # the previous hash in the first line
MAX_LINE = 1 << 20  # bytes that contain the last line; most lines have a few hundred


class Chain(NamedTuple):
    """A verified audit: its lines, and the hash of the last one."""

    lines: list[dict[str, Any]]
    head: str


class Audit:
    """Append to one file. Lines from several processes stay whole and form one chain."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def head(self) -> str:
        """The hash of the last line on disk."""
        try:
            with self.path.open("rb") as stream:
                return _hash(_last_line(stream)[0])
        except FileNotFoundError:
            return START

    def append(self, event: str, **facts: Any) -> None:
        """Write one line and wait until it is on disk."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as stream:
                lock_file(stream.fileno(), wait=True)
                last, end = _last_line(stream)
                try:
                    number = json.loads(last)["number"] + 1 if last else 1
                except (ValueError, KeyError, TypeError) as error:
                    raise FedBMError(f"the last line of {self.path} is damaged: move the file away") from error
                stream.truncate(end)  # a killed process can leave half a line
                line = {
                    "format": FORMAT,
                    "number": number,
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "event": event,
                    **replace_nonfinite(facts),
                    "before": _hash(last),
                }
                text = json.dumps(line, ensure_ascii=False, allow_nan=False)
                stream.write(text.encode(errors="backslashreplace") + b"\n")  # half a surrogate pair has no UTF-8
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error


def verify(path: Path) -> Chain:
    """Read an audit and check its chain; raise FedBMError naming the first line that does not fit."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FedBMError(f"cannot read {path}: {error.strerror}") from error
    if content and not content.endswith(b"\n"):
        raise FedBMError(f"the last line of {path} is incomplete: a process was killed while writing, or it was cut")
    head, lines = START, []
    for number, raw in enumerate(content.split(b"\n")[:-1], 1):
        try:
            line = json.loads(raw)
            if (line["format"], line["number"], line["before"]) != (FORMAT, number, head):
                raise ValueError("the chain is broken")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FedBMError(f"line {number} of {path} does not fit: the audit was changed") from error
        head = _hash(raw)
        lines.append(line)
    return Chain(lines, head)


def _last_line(stream: IO[bytes]) -> tuple[bytes, int]:
    """Return the last complete line and the position of its end."""
    size = stream.seek(0, os.SEEK_END)
    for start in (max(size - MAX_LINE, 0), 0):  # the whole file, if the last lines are longer
        stream.seek(start)
        tail = stream.read()
        complete = tail[: tail.rfind(b"\n") + 1]
        if b"\n" in complete[:-1]:
            break
    return complete[:-1].rpartition(b"\n")[2], start + len(complete)


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else START
