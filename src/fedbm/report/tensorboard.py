"""Write the rounds of runs as TensorBoard's event files, a folder per run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbm.errors import FedBMError
from fedbm.runs.run_view import RunView
from fedbm.runs.tracking import scalars


def write_events(runs: Sequence[RunView], to: Path) -> list[Path]:
    """Write events and return the folders. Raise FedBMError if a folder is not empty: TensorBoard would show both."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FedBMError('writing events needs tensorboard: pip install "fedbm[tensorboard]"') from error
    folders = [to / run.id for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise FedBMError(f"{folder} already contains files. Remove it, or choose another folder.")
            with SummaryWriter(str(folder)) as writer:
                for record in run.rounds:
                    for name, value in scalars(record):
                        writer.add_scalar(name, value, record.round)
        except OSError as error:
            raise FedBMError(f"cannot write events to {folder}: {error.strerror}. Choose another folder.") from error
    return folders
