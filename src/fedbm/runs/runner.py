"""Run a simulation, or resume it: simulate(data, partition, method="fedbm", rounds=20, …) → RunView."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from fedbm.config.options import PARTITION_KEYS
from fedbm.data.dataset import Dataset, check_source
from fedbm.data.feature_shift import shift_images
from fedbm.data.partition import Partition, find_sources
from fedbm.engine.checkpoint import ClientStates, Progress, load_best, load_checkpoint, remove_stale_files
from fedbm.engine.clients.backends import make_backend, uses_cuda_graphs
from fedbm.engine.clients.cohort import LocalSetup
from fedbm.engine.device import (
    explain_memory_errors,
    find_device,
    numeric_settings,
    place_images,
    separate_stream,
    share_on_device,
    state_cache_bytes,
)
from fedbm.engine.local_training import Samples, check_batch_norms
from fedbm.engine.round_loop import Event, RoundLoop
from fedbm.engine.run_folder import RunFolder
from fedbm.engine.server_average import ServerAverage, restore_average
from fedbm.engine.server_optimizer import ServerOptimizer, restore_optimizer
from fedbm.errors import FedBMError
from fedbm.methods.base import Method, State, Task
from fedbm.runs.callbacks import Callback, Notifier, check_callbacks
from fedbm.runs.failure import clear_failure
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.progress_display import print_notes, progress_console, show_decoding, show_runs
from fedbm.runs.run_config import Config, configure, keys
from fedbm.runs.run_file_writer import draw_if_due, finish_simulation, write_initial_files
from fedbm.runs.run_view import RunView, check_resumable, read_run
from fedbm.runs.tracking import make_trackers
from fedbm.utils.text import format_bytes


def simulate(
    data: str | Path | Dataset = "digits",
    partition: Partition | str | None = None,
    method: str | Method = "fedbm",
    *,
    body: str | Callable[[], nn.Module] | None = None,
    on_event: Callable[[Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **settings: Any,
) -> RunView:
    """Train one model over simulated clients. The same call again resumes the run, or reads it if it is finished.

    Args:
        data: a catalogued name, a path, or what `fedbm.load()` returned.
        partition: what a partitioner such as `fedbm.dirichlet()` returned, or its name, such as "dirichlet".
        method: a name, an object such as `fedbm.FedBM(temperature=5)`, or the class of your own as "FILE.py:CLASS".
        body: a name such as "timm:tf_efficientnet_lite0", or a function that makes a module from images to features.
        on_event: called with each event of the run.
        callbacks: objects of subclasses of `fedbm.Callback`, called at the start and end of rounds.
        progress: whether to print notes and progress. Default: in a terminal or a notebook only.
        settings: any key of `fedbm config`, such as clients=5, beta=0.1, rounds=20, device="cuda", out="runs".

    Returns:
        The finished run.

    Raises:
        FedBMError: if a setting is wrong, or the run fails.

    Example:
        >>> import fedbm
        >>> run = fedbm.simulate("digits", method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> run.state, run.summary["best"]["round"]
        ('finished', 1)
    """
    if isinstance(partition, str):
        settings["partition"], partition = partition, None
    if not isinstance(partition, Partition | None):
        raise FedBMError("partition must be what a partitioner such as fedbm.dirichlet() returned, or the name of one")
    if isinstance(body, str):
        settings["body"], body = body, None
    if body is not None and (isinstance(body, nn.Module) or not callable(body)):
        raise FedBMError(
            "body must be a function that makes the module, such as lambda: MyBody(), not the module itself"
        )
    dataset = use_data(data, settings, partition is not None, body is not None)
    config = configure(method, settings)
    objects: dict[str, Any] = {"dataset": dataset, "partition": partition, "make_body": body}
    return compute_run(config, progress_console(progress), on_event=on_event, callbacks=callbacks, **objects)


def compute_run(
    config: Config,
    console: Console,
    *,
    on_plan: Callable[[Plan], None] = lambda plan: None,
    on_event: Callable[[Event], None] | None = None,
    callbacks: Sequence[Callback] = (),
    **objects: Any,
) -> RunView:
    """Run what remains of a run, show its progress on the console, and return the finished run.

    *on_plan* is called before the first round. *objects* are what make_plan() takes instead of settings.
    """
    check_engine(config)
    check_callbacks(callbacks)
    with show_decoding(console) as decoding:
        plan = make_plan(config, progress=decoding, **objects)
    path = run_path(plan)
    check_resumable(path)
    print_notes(console, plan.notes)
    on_plan(plan)
    if RunFolder(path).done:
        console.print("this run is finished; nothing to compute")
        return read_run(path)
    notify = Notifier(callbacks, path, plan.config)
    shown = {path: (plan.config.method.name, plan.config.train.rounds)}
    with notify, show_runs(console, shown) as show, closing(run(plan)) as events:
        for event in events:
            show(path, event)
            if on_event is not None:
                on_event(event)
            notify(event)
    return read_run(path)


def use_data(data: str | Path | Dataset, settings: dict[str, Any], partition: bool, body: bool) -> Dataset | None:
    """Return a loaded data set, or None for a name or path, which becomes a setting.

    Raises FedBMError for a setting that has no effect, because the object that it describes was already made.
    """
    dataset = data if isinstance(data, Dataset) else None
    for key in keys():
        is_made = partition if key.name in PARTITION_KEYS else dataset is not None
        if key.flag in settings and ((key.section == "model" and body) or (key.section == "data" and is_made)):
            raise FedBMError(
                f"{key.flag} has no effect on data, a partition or a body that is already made. Remove it."
            )
    if dataset is None:
        check_source(data)
        settings["data"] = str(data)
    return dataset


def run_path(plan: Plan) -> Path:
    return Path(plan.config.engine.out).expanduser() / plan.id


def run(plan: Plan) -> Generator[Event, None, None]:
    """Run the remaining rounds, then write summary, model and pictures. A finished run is not touched."""
    if plan.config.engine.on != "processes":
        raise FedBMError(
            f"on = {plan.config.engine.on} needs several runs, and data and methods that are read from files. "
            "Remove on."
        )
    with closing(iterate_run(plan)) as turns:  # closing may write a checkpoint, and fail
        yield from (event for event in turns if event is not None)


def iterate_run(plan: Plan) -> Generator[Event | None, None, None]:
    """Yield the events of a run, and None while it waits, so that several runs can take turns in one process.

    Settings of the whole process (threads, TF32, the current stream) apply only during this run's turns.
    """
    device = find_device(plan.config.engine.device)
    stream = separate_stream(device)
    turns = _iterate_rounds(plan, device)
    try:
        while True:
            with numeric_settings(plan.config.engine, plan.config.train.precision), stream:
                try:
                    event = next(turns)
                except StopIteration:
                    return
            yield event
    finally:
        with numeric_settings(plan.config.engine, plan.config.train.precision), stream:
            turns.close()  # writes a checkpoint, if the run stopped between two rounds
        if device.type == "cuda":  # captured steps are in reference cycles, and the next run needs their memory
            gc.collect()
            torch.cuda.empty_cache()


def _iterate_rounds(plan: Plan, device: torch.device) -> Generator[Event | None, None, None]:
    folder = RunFolder(run_path(plan))
    with folder.lock(), explain_memory_errors(device):
        if folder.done:  # another process may have finished it
            return
        trackers = make_trackers(plan.config.engine.track)
        loop = prepare_round_loop(plan, folder, device)
        with Notifier(trackers, folder.path, plan.config) as notify:
            yield from iterate_loop(loop, notify)
            finish_simulation(plan, loop)


def iterate_loop(loop: RoundLoop, notify: Callable[[Event], None]) -> Generator[Event | None, None, None]:
    """Run the remaining rounds of a simulation or federation, and draw generated images after some of them."""
    with closing(loop.cohort), closing(loop.rounds()) as events:
        draw_if_due(loop)  # if the run was stopped between a round's checkpoint and its picture
        for event in events:
            if event is not None:
                notify(event)
                if event.record is not None:
                    draw_if_due(loop)
            yield event


def prepare_round_loop(plan: Plan, folder: RunFolder, device: torch.device) -> RoundLoop:
    """Create or resume the run's folder, and return its round loop."""
    config, dataset, task = plan.config, plan.dataset, plan.task
    notes: list[str] = []
    stored, shared_name = shift_images(dataset, plan.partition), f"{dataset.checksum} images"
    if plan.partition.shift is not None:
        shared_name += f" {plan.partition.digest}"
    images = place_images(stored, device, config.engine.data_on, shared_name)
    labels = share_on_device(dataset.labels, f"{dataset.checksum} labels", device)
    if images.is_cpu and labels.is_cuda and config.engine.data_on == "auto":
        size = format_bytes(images.nbytes)
        notes.append(f"the images ({size}) stay in host memory, because {device} has too little free memory for them")
    start = start_or_resume(folder, plan.id, config, task, device, lambda: write_initial_files(plan, folder, device))
    progress = start.progress
    states = ClientStates(folder.path / "clients", device, progress.client_rounds, state_cache_bytes(device))
    own = [torch.from_numpy(indices).to(images.device) for indices in plan.partition.clients]
    if config.method.central:
        own = [torch.cat(own).sort().values]
    setup = LocalSetup(config.method, task, config.train, start.model, images, labels, own, states, progress)
    backend = make_backend(setup, config.engine, stored, notes.append)
    normalise = task.normalise().to(device)
    normalise.memory_format = backend.memory_format

    def subset(indices: NDArray[np.int64], sources: NDArray[np.int64] | None = None) -> Samples:
        return Samples(images, labels, torch.from_numpy(indices).to(images.device), normalise, sources)

    partition = plan.partition
    sets = {name: subset(partition.scored_samples(dataset, name)) for name in ("val", "test")}
    held_out = None
    if partition.held_out:
        owners = np.repeat(np.arange(len(partition.held_out)), list(map(len, partition.held_out)))
        held_out = subset(np.concatenate(partition.held_out), owners)
    if (sources := find_sources(dataset, partition)) is not None:
        sets["test"] = dataclasses.replace(sets["test"], sources=sources.numbers)
    return RoundLoop(
        **vars(start),
        run_id=plan.id,
        method=config.method,
        task=task,
        train=config.train,
        cohort=backend.cohort,
        states=states,
        sets=sets,
        folder=folder,
        steps=backend.steps,
        checkpoint_every=config.engine.checkpoint_every,
        notes=notes,
        held_out=held_out,
    )


@dataclass(frozen=True)
class RunState:
    """The state in which a run starts or continues: fields of its RoundLoop."""

    model: nn.Module
    server: State
    average: ServerAverage | None
    optimizer: ServerOptimizer | None
    progress: Progress


def start_or_resume(
    folder: RunFolder, run_id: str, config: Config, task: Task, device: torch.device, describe: Callable[[], None]
) -> RunState:
    """Return the state of the run's last checkpoint, or its initial state. The caller has locked the folder.

    Lines of rounds.jsonl and files that belong to rounds after the checkpoint are removed, as well as failed.json. If
    there is no checkpoint, *describe* is called to write the files that describe the run.
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
    if progress.best is not None:
        load_best(folder.path, progress.best_round)  # a damaged file is reported before anything is computed
    folder.cut_after(progress.round)
    clear_failure(folder.path)
    remove_stale_files(folder.path, progress)
    return RunState(model, server, average, optimizer, progress)


def check_engine(config: Config) -> None:
    """Raise FedBMError if the run cannot be computed here, before data are decoded."""
    uses_cuda_graphs(config.engine, config.method, find_device(config.engine.device))
