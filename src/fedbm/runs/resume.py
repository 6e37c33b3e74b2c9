"""Start a run, or resume it from its last checkpoint. Simulation and deployment share this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedbm.engine.checkpoint import Progress, load_checkpoint, remove_stale_files
from fedbm.engine.local_training import check_batch_norms
from fedbm.engine.run_folder import RunFolder
from fedbm.engine.server_average import ServerAverage, restore_average
from fedbm.engine.server_optimizer import ServerOptimizer, restore_optimizer
from fedbm.methods.base import State, Task
from fedbm.runs.run_config import Config


@dataclass(frozen=True)
class RunState:
    """The state in which a run starts or continues."""

    model: nn.Module
    server: State
    average: ServerAverage | None
    optimizer: ServerOptimizer | None
    progress: Progress


def start_or_resume(
    folder: RunFolder, run_id: str, config: Config, task: Task, device: torch.device, describe: Callable[[], None]
) -> RunState:
    """Return the state of the run's last checkpoint, or its initial state. The caller has locked the folder.

    Lines of rounds.jsonl and files that belong to rounds after the checkpoint are removed. If there is no checkpoint,
    *describe* is called to write the files that describe the run.
    """
    model = config.method.model(task)
    check_batch_norms(config.method, model, config.train)
    initial = config.method.server_init(model)
    model.to(device)
    found = load_checkpoint(folder.path, run_id, device)
    if found is None:
        describe()
        found = {name: value.to(device) for name, value in initial.items()}, Progress()
    state, progress = found
    state, optimizer = restore_optimizer(state, config.train)
    server, average = restore_average(state, config.train.server_average)
    folder.cut_after(progress.round)
    remove_stale_files(folder.path, progress)
    return RunState(model, server, average, optimizer, progress)
