"""A run's folder.

    config.toml  environment.json  partition.json  concepts.safetensors     before the first round
    rounds.jsonl                                                            a line per round
    summary.json  details.json  model.safetensors  generated.png            when the run is finished

Files are written whole, or not at all. `rounds.jsonl` grows by one flushed line a round. When a run is resumed, lines
after the last checkpoint are removed and written again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedbm.engine.round_record import RoundRecord
from fedbm.errors import FedBMError, shorten_list
from fedbm.utils.io import atomic_write, cannot_write, lock_file, make_folder
from fedbm.utils.json_records import decode

FORMAT = 1


class BusyError(FedBMError):
    """Another process works on the folder."""


class RunFolder:
    """The folder runs/<id>: a lock, and rounds.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        return os.path.exists(self.path / "summary.json")  # Path.exists() raises OSError if the name is too long

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes. The system releases the lock however this process ends."""
        make_folder(self.path)
        try:
            handle = open(self.path / "lock", "a")  # noqa: SIM115 (closed below, when the run ends)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        with handle:
            try:
                lock_file(handle.fileno())
            except (BlockingIOError, PermissionError) as error:
                raise BusyError(f"another process is working on {self.path}. Wait until it has ended.") from error
            except OSError as error:
                raise cannot_write(self.path, error) from error
            for leftover in self.path.rglob(".*.part"):  # of a process that was killed while it wrote
                with suppress(OSError):
                    leftover.unlink()
            yield

    def append(self, record: RoundRecord, has_average: bool = False) -> None:
        """Add a line to rounds.jsonl; only runs with an averaged model have the key `averaged`."""
        values = dataclasses.asdict(record)
        if not has_average:
            del values["averaged"]
        elif record.averaged and record.averaged.scored is None:  # the server scored it
            del values["averaged"]["scored"]
        line = json.dumps(replace_nonfinite(values), allow_nan=False, ensure_ascii=False)
        path = self.path / "rounds.jsonl"
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error

    def cut_after(self, round_: int) -> None:
        """Remove the lines after *round_* and an incomplete last line; raise FedBMError if one before is missing."""
        path = self.path / "rounds.jsonl"
        kept = read_rounds(path)[:round_]
        if [record.round for record in kept] != list(range(1, round_ + 1)):
            raise FedBMError(
                f"{path} must contain rounds 1 to {round_}, because the checkpoint is of round {round_}. Restore the "
                f"file, or remove {self.path} to start this run over."
            )
        lines = path.read_bytes().split(b"\n")[:round_] if kept else []
        with atomic_write(path) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in lines))


def read_rounds(path: Path) -> tuple[RoundRecord, ...]:
    """Return the records of a rounds.jsonl; an incomplete last line, as an interrupted run leaves it, is ignored."""
    try:
        complete = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise FedBMError(f"cannot read {path}: {error.strerror}") from error
    records = []
    for number, text in enumerate(complete, 1):
        where, remedy = f"line {number} of {path} is damaged", f". Remove {path.parent} to start this run over."
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FedBMError(f"{where}: {error}{remedy}") from error
        records.append(decode(RoundRecord, value, where, remedy))
    return tuple(records)


def replace_nonfinite(value: Any) -> Any:
    """Return *value* with NaN and infinities replaced by None, because JSON cannot express them."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def find_runs(out: Path, names: Sequence[str]) -> list[Path]:
    """Return the run folders that *names* name: folders of runs, or what find_run() accepts. Default: all in *out*."""
    if not names:
        return _runs_in(out)
    return [run for name in names for run in _runs_in(Path(name)) or [find_run(out, name)]]


def _runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.toml"))


def find_run(out: Path, name: str) -> Path:
    """Return the run folder of *name*: a path, an id, or a part of one id, such as its first words."""
    if not name:
        raise FedBMError("the name of the run is empty. Give its folder, its id or a part of the id.")
    for path in (Path(name), out / name):
        if (path / "config.toml").exists():
            return path
    runs = _runs_in(out)
    found = [path for path in runs if path.name.startswith(f"{name}-")] or [path for path in runs if name in path.name]
    if len(found) == 1:
        return found[0]
    if several := found or _runs_in(Path(name)):
        names = shorten_list([str(path) for path in several], 3)
        raise FedBMError(f'"{name}" stands for several runs: {names}. Give the folder of one of them.')
    raise FedBMError(f"there is no run \"{name}\" in {out} and no such folder of a run; 'fedbm list {out}' lists runs")
