"""A run's folder: what was asked, on what, what happened each round, and what came out.

    config.toml  environment.json  partition.json  concepts.safetensors     before the first round
    rounds.jsonl                                                            a line per round
    summary.json  details.json  model.safetensors  generated.png            when the run is done

Files are whole or absent. `rounds.jsonl` grows by one flushed line a round; what lies beyond the last checkpoint when a
run is resumed is cut off and written again.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.files import cannot_write, replacing

FORMAT = 1


class RunFolder:
    """runs/<id>: append rounds, and hold it alone while a run is in progress."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        return (self.path / "summary.json").exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out of this run; the system releases it however this process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(self.path / "lock", "a")  # noqa: SIM115 (held until the run ends)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            try:
                _lock(handle.fileno())
            except OSError as error:
                raise FedBMError(
                    f"another process is working on {self.path}; wait for it or choose another --out"
                ) from error
            yield
        finally:
            handle.close()

    def append(self, record: dict[str, Any]) -> None:
        line = json.dumps(finite(record), allow_nan=False, ensure_ascii=False)
        path = self.path / "rounds.jsonl"
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error

    def cut_after(self, round_: int) -> None:
        """Forget lines of rounds after *round_*, and a line only half written."""
        path = self.path / "rounds.jsonl"
        kept = [line for line in read_lines(path) if line["round"] <= round_]
        with replacing(path) as beside, beside.open("w", encoding="utf-8") as stream:
            for line in kept:
                stream.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a rounds.jsonl; a last line only half written is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if line.endswith("\n"):
                yield json.loads(line)


def finite(value: Any) -> Any:
    """*value* with NaN and infinities as None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
