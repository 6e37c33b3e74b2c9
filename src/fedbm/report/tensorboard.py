"""rounds.jsonl → TensorBoard's event files, a folder per run: `tensorboard --logdir DIR` shows the curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbm.errors import FedBMError
from fedbm.runs.reader import RunView

SHOWN = ("loss", "generator", "val", "test", "bytes", "seconds")


def write_events(runs: Sequence[RunView], to: Path) -> list[Path]:
    """The folders written; one that has events already is left alone, since TensorBoard would show both."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FedBMError("TensorBoard is not installed: pip install 'fedbm[tensorboard]'") from error
    written = []
    for run in runs:
        folder = to / run.id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise FedBMError(f"{folder} holds events already; remove it, or choose another folder")
            with SummaryWriter(str(folder)) as writer:
                for record in run.rounds:
                    for name, value in scalars(record):
                        writer.add_scalar(name, value, record["round"])
        except OSError as error:
            raise FedBMError(f"cannot write events to {folder}: {error.strerror}; choose another folder") from error
        written.append(folder)
    return written


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """("test/accuracy", 0.91), … of one round; what is null or not there is left out."""
    if record.get("lr") is not None:
        yield "lr", float(record["lr"])
    for part in SHOWN:
        for name, value in (record.get(part) or {}).items():
            if value is not None:
                yield f"{part}/{name}", float(value)
    for side, scores in (record.get("averaged") or {}).items():
        for name, value in scores.items() if side != "scored" else ():
            if value is not None:
                yield f"averaged {side}/{name}", float(value)
    if record.get("personal"):
        yield "personal/accuracy", float(record["personal"]["accuracy"])
    if "dropped" in record:
        yield "clients/dropped", float(len(record["dropped"]))
