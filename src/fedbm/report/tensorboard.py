"""rounds.jsonl → TensorBoard's event files, a folder per run: `tensorboard --logdir DIR` shows the curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedbm.engine.records import RoundRecord
from fedbm.errors import FedBMError
from fedbm.runs.reader import RunView


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
                        writer.add_scalar(name, value, record.round)
        except OSError as error:
            raise FedBMError(f"cannot write events to {folder}: {error.strerror}; choose another folder") from error
        written.append(folder)
    return written


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """("test/accuracy", 0.91), … of one round; what is null or not there is left out."""
    if record.lr is not None:
        yield "lr", record.lr
    groups: dict[str, Mapping[str, float | None] | None] = {
        "loss": record.loss,
        "generator": record.generator,
        "val": record.val,
        "test": record.test,
        "bytes": {"sent": record.bytes.sent, "received": record.bytes.received},
        "seconds": record.seconds,
    }
    if record.averaged:
        groups |= {"averaged val": record.averaged.val, "averaged test": record.averaged.test}
    for group, values in groups.items():
        for name, value in (values or {}).items():
            if value is not None:
                yield f"{group}/{name}", value
    if record.personal:
        yield "personal/accuracy", record.personal.accuracy
    yield "clients/dropped", float(len(record.dropped))
