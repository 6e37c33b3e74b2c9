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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.utils.io import atomic_write, cannot_write

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
            except (BlockingIOError, PermissionError) as error:
                raise FedBMError(
                    f"another process is working on {self.path}; wait for it or choose another --out"
                ) from error
            except OSError as error:
                raise cannot_write(self.path, error) from error
            self._sweep()
            yield
        finally:
            handle.close()

    def _sweep(self) -> None:
        """Remove what a process that was killed had half written beside its place."""
        for leftover in self.path.rglob(".*.part"):
            with suppress(OSError):
                leftover.unlink()

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
        kept = [line for line in read_rounds(path) if line["round"] <= round_]
        if [line["round"] for line in kept] != list(range(1, round_ + 1)):
            raise FedBMError(
                f"{path} should hold rounds 1 to {round_}, which the checkpoint has behind it, but holds {len(kept)} "
                f"of them; put the file back, or remove {self.path} to start this run over"
            )
        with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
            for line in kept:
                stream.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")


def read_rounds(path: Path) -> tuple[dict[str, Any], ...]:
    """Every whole line of a rounds.jsonl; a last line only half written, as a run cut short leaves it, is left out."""
    try:
        whole = path.read_bytes().rpartition(b"\n")[0]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise FedBMError(f"cannot read {path}: {error.strerror}") from error
    records = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            record = json.loads(line)
            if type(record["round"]) is not int:
                raise TypeError("its round is no whole number")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FedBMError(
                f"line {number} of {path} is damaged: {error}; remove {path.parent} to start this run over"
            ) from error
        records.append(record)
    return tuple(records)


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
