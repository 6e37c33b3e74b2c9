"""Live tracking of a run in TensorBoard, MLflow or Weights & Biases: callbacks that log the numbers of each round."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from fedbm.engine.round_record import RoundRecord
from fedbm.errors import FedBMError
from fedbm.runs.callbacks import Callback, RunInfo

PARTS = ("loss", "generator", "val", "test", "bytes", "seconds")


def make_trackers(name: str) -> list[Callback]:
    """Return the callback of a tracker; none for "none". Raise FedBMError if its package is not installed."""
    kinds: dict[str, tuple[type[Callback], str]] = {
        "tensorboard": (TensorBoard, 'pip install "fedbm[tensorboard]"'),
        "mlflow": (MLflow, 'pip install "fedbm[mlflow]"'),
        "wandb": (WeightsAndBiases, 'pip install "fedbm[wandb]"'),
    }
    if name not in kinds:
        return []
    kind, command = kinds[name]
    try:
        return [kind()]
    except ImportError as error:
        raise FedBMError(f"track = {name} needs a package that is not installed: {command}") from error
    except Exception as error:  # no connection, for example
        raise FedBMError(f"track = {name} cannot start: {type(error).__name__}: {error}") from error


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Yield ("test/accuracy", 0.91), … for one round, without values that are null or missing."""
    if record.lr is not None:
        yield "lr", record.lr
    parts = {part: record.get(part) for part in PARTS}
    if record.averaged:
        parts |= {"averaged val": record.averaged.val, "averaged test": record.averaged.test}
    for part, values in parts.items():
        for name, value in (values or {}).items():
            if value is not None:
                yield f"{part}/{name}", float(value)
    if record.personal:
        yield "personal/accuracy", record.personal.accuracy
    yield "clients/dropped", float(len(record.dropped))


def flat_settings(run: RunInfo) -> dict[str, Any]:
    """Return {"train.rounds": 50, …} without the engine's options."""
    sections = {section: pairs for section, pairs in run.settings.items() if section != "engine"}
    return {f"{section}.{key}": value for section, pairs in sections.items() for key, value in pairs.items()}


class TensorBoard(Callback):
    """Write event files to the folder tensorboard/ of the run. Rounds that a resumed run repeats are replaced."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = SummaryWriter
        self._writer: Any = None

    def on_round_start(self, run: RunInfo, round_: int) -> None:
        if self._writer is None:
            self._writer = self._open(str(run.path / "tensorboard"), purge_step=round_ if round_ > 1 else None)

    def on_round_end(self, run: RunInfo, record: RoundRecord) -> None:
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def on_end(self, run: RunInfo, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Callback):
    """Log to the server or folder that MLFLOW_TRACKING_URI names, in the experiment MLFLOW_EXPERIMENT_NAME or "fedbm".

    A resumed run continues its MLflow run, which is found by the tag `fedbm.run`.
    """

    def __init__(self) -> None:
        from mlflow.tracking import MlflowClient

        self._client, self._id = MlflowClient(), ""

    def on_round_start(self, run: RunInfo, round_: int) -> None:
        if not self._id:
            self._id = self._start(run)

    def on_round_end(self, run: RunInfo, record: RoundRecord) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name.replace(" ", "_"), value, now, record.round) for name, value in scalars(record)]
        self._client.log_batch(self._id, metrics=metrics)

    def on_end(self, run: RunInfo, finished: bool) -> None:
        if self._id:
            self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")

    def _start(self, run: RunInfo) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedbm")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        found = self._client.search_runs([experiment], f"tags.`fedbm.run` = '{run.id}'", max_results=1)
        if found:
            started = str(found[0].info.run_id)
            self._client.update_run(started, status="RUNNING")
            return started
        made = self._client.create_run(experiment, tags={"fedbm.run": run.id}, run_name=run.id)
        settings = flat_settings(run).items()
        self._client.log_batch(made.info.run_id, params=[Param(key, str(value)[:500]) for key, value in settings])
        return str(made.info.run_id)


class WeightsAndBiases(Callback):
    """Log with wandb, in the project WANDB_PROJECT or "fedbm".

    Unless WANDB_MODE is set, it is offline: nothing leaves the machine, and `wandb sync` uploads the run.
    """

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb
        self._run: Any = None

    def on_round_start(self, run: RunInfo, round_: int) -> None:
        if self._run is None:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "fedbm"),
                id=run.id,
                name=run.id,
                config=flat_settings(run),
                dir=str(run.path),
                mode=os.environ.get("WANDB_MODE", "offline"),
                resume="allow",
                reinit="create_new",
            )

    def on_round_end(self, run: RunInfo, record: RoundRecord) -> None:
        self._run.log(dict(scalars(record)), step=record.round)

    def on_end(self, run: RunInfo, finished: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)
