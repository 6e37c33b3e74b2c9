"""Callbacks: code of the user, and trackers, that are called during a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbm.engine.round_loop import Event
from fedbm.engine.round_record import RoundRecord
from fedbm.engine.run_folder import RunFolder
from fedbm.errors import FedBMError
from fedbm.runs.run_config import Config, to_values


@dataclass(frozen=True)
class RunInfo:
    """The run that calls a callback.

    Attributes:
        id: the run's id, which is the name of its folder.
        path: the run's folder.
        settings: the configuration, {section: {key: value}}.

    Example:
        >>> import fedbm
        >>> class Name(fedbm.Callback):
        ...     def on_end(self, run, finished):
        ...         print(run.id == run.path.name, run.settings["train"]["rounds"])
        >>> settings = dict(method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> run = fedbm.simulate("digits", callbacks=[Name()], seed=8, **settings)
        True 1
    """

    id: str
    path: Path
    settings: Mapping[str, Mapping[str, Any]]


class Callback:
    """Base class of callbacks for `simulate()`, `compare()` and `reproduce()`. Override the methods that you need.

    A resumed run calls them from the round after its last checkpoint on. A finished run, which is only read, does not
    call them. If a method raises an exception, all runs of the call stop with a sentence. The same call resumes them.

    Example:
        >>> import fedbm
        >>> class Print(fedbm.Callback):
        ...     def on_evaluation(self, run, record):
        ...         print(f"round {record.round}: {sorted(record.val)}")
        >>> settings = dict(method="fedavg", clients=5, rounds=1, size=16, width=8, batch=32)
        >>> run = fedbm.simulate("digits", callbacks=[Print()], seed=9, **settings)
        round 1: ['accuracy', 'auc', 'f1', 'precision', 'recall']
    """

    def on_round_start(self, run: RunInfo, round_: int) -> None:
        """Do something before the clients of a round train, which may be right after the round before."""

    def on_evaluation(self, run: RunInfo, record: RoundRecord) -> None:
        """Do something after a round in which the model was scored: `record.val` and `record.test`."""

    def on_round_end(self, run: RunInfo, record: RoundRecord) -> None:
        """Do something after each round, when its record is in rounds.jsonl; after `on_evaluation`."""

    def on_end(self, run: RunInfo, finished: bool) -> None:
        """Do something when the run is finished, or when it stops early."""


class Notifier:
    """Call the callbacks of one run for its events. As a context, call on_end when it ends.

    Raise FedBMError if a callback fails. This happens between two rounds, where a run that stops loses no round.
    """

    def __init__(self, callbacks: Sequence[Callback], folder: Path, config: Config) -> None:
        self._callbacks, self._run = callbacks, RunInfo(folder.name, folder, to_values(config))
        self._round = 0  # the current one

    def __call__(self, event: Event) -> None:
        if event.round > self._round:
            self._start(event.round)
        if (record := event.record) is not None:
            if record.val is not None:
                self._call("on_evaluation", record)
            self._call("on_round_end", record)
            if not event.last:
                self._start(event.round + 1)

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, *reason: object) -> None:
        """Call on_end. Raise FedBMError if it fails for a finished run; another run has stopped for another reason."""
        finished = RunFolder(self._run.path).done
        with nullcontext() if finished else suppress(FedBMError):
            self._call("on_end", finished)

    def _start(self, round_: int) -> None:
        self._round = round_
        self._call("on_round_start", round_)

    def _call(self, hook: str, *arguments: Any) -> None:
        """Call every callback, also after one has failed. Then raise FedBMError for the first that did."""
        failure: FedBMError | None = None
        for callback in self._callbacks:
            try:
                getattr(callback, hook)(self._run, *arguments)
            except Exception as error:
                then = "The run is saved" if hook == "on_end" else "Run the same command again to continue"
                words = f"{type(callback).__name__}.{hook} failed: {type(error).__name__}: {error}. {then}."
                if failure is None:
                    failure = FedBMError(words)
                    failure.__cause__ = error
        if failure is not None:
            raise failure


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raise FedBMError if one of them is not a callback object."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            hint = f": write {callback.__name__}()" if isinstance(callback, type) else ""
            raise FedBMError(f"callbacks must be objects of subclasses of fedbm.Callback, not {callback!r}{hint}")
