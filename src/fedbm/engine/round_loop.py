"""The round loop: select → broadcast → train → aggregate → evaluate → record. Simulation and deployment share it.

The loop is a generator. It yields events, and None while it waits, so that a caller can show progress, stop, or
advance several runs by turns. When it yields a record, that round is in rounds.jsonl. If it is closed then, it writes
a checkpoint, from which the run can be resumed.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import nn

from fedbm.config.options import TrainOptions
from fedbm.engine.checkpoint import ClientStates, Progress, best_path, save_checkpoint, save_tensors
from fedbm.engine.clients.cohort import Cohort, broadcast, find_nonfinite
from fedbm.engine.device import autocast, wait_until_idle
from fedbm.engine.evaluate import evaluate_round
from fedbm.engine.local_training import Samples, learning_rate
from fedbm.engine.round_record import AveragedScores, ClientRound, Dropped, Evaluation, RoundRecord, Traffic, is_better
from fedbm.engine.run_folder import RunFolder
from fedbm.engine.server_average import ServerAverage, no_common_model
from fedbm.engine.server_optimizer import ServerOptimizer
from fedbm.errors import DivergenceError, FedBMError
from fedbm.methods.base import Aggregator, Method, State, Steps, Task, size_of
from fedbm.utils.seeds import numpy_rng

MAX_CHECKPOINT_SHARE = 1 / 50  # of the time, unless checkpoint_every is set
MAX_SECONDS_UNSAVED = 60.0
LOST = "no answer in time, as drop_rate drew it"
MAX_EMPTY_ROUNDS = 10  # consecutive rounds without a usable update; then the run stops


@dataclass(frozen=True)
class Event:
    """Progress of a run: a client is done, a phase begins, or a round is finished."""

    round: int
    phase: str  # train | aggregate | evaluate | done
    done: int = 0
    total: int = 0
    losses: Mapping[str, float] | None = None
    record: RoundRecord | None = None  # of a finished round
    note: str = ""  # a message of the engine
    last: bool = False  # the run ends with this round


def count_selected(clients: int, participation: float) -> int:
    """Return how many of N clients are selected each round: max(1, ⌊participation·N⌋)."""
    return max(1, math.floor(participation * clients + 1e-9))  # 0.29 · 100 is 28.999…


def select_clients(
    clients: int, participation: float, seed: int, round_: int, population: int | None = None
) -> list[int]:
    """Return max(1, ⌊participation·N⌋) clients in ascending order, drawn from the stream (seed, "selection", round).

    N is *clients*, or *population* if only *clients* of them are available; then at most those are selected.
    """
    count = min(clients, count_selected(population or clients, participation))
    chosen = numpy_rng(seed, "selection", round_).choice(clients, size=count, replace=False)
    return sorted(int(client) for client in chosen)


def draw_lost(clients: Sequence[int], drop_rate: float, seed: int, round_: int) -> set[int]:
    """Return the clients without an update, each with probability *drop_rate*, from (seed, "drop", round, client)."""
    return {client for client in clients if drop_rate and numpy_rng(seed, "drop", round_, client).random() < drop_rate}


@dataclass(frozen=True)
class Collected:
    """One attempt at a round: the selected clients, their results, and the aggregator that has added them."""

    round: int
    selected: tuple[int, ...]
    aggregator: Aggregator
    clients: tuple[ClientRound, ...]
    dropped: tuple[Dropped, ...]


@dataclass
class RoundLoop:
    """A run in memory.

    If clients may fail to reply, a round needs *min_updates* usable updates, or as many as clients are selected if
    those are fewer. It is tried at most *max_round_attempts* times. *population* is the number of clients N if fewer
    may be available. If *sets* is empty, the clients score the model on their own images.
    """

    run_id: str
    method: Method
    task: Task
    train: TrainOptions
    model: nn.Module
    cohort: Cohort
    server: State
    progress: Progress
    states: ClientStates
    sets: Mapping[str, Samples]
    folder: RunFolder
    steps: Steps
    checkpoint_every: int = 0  # rounds; 0 means that checkpoints take MAX_CHECKPOINT_SHARE of the time
    notes: list[str] = field(default_factory=list)  # messages of the engine that are not recorded yet
    min_updates: int = 0
    max_round_attempts: int = 1
    population: int | None = None
    average: ServerAverage | None = None
    optimizer: ServerOptimizer | None = None
    held_out: Samples | None = None  # of clients that never train; its sources are their numbers
    traffic: Traffic = field(default_factory=Traffic)  # of the current round
    _best: State | None = None  # the best state since the last checkpoint
    _checkpoint_seconds: float = 0.0  # of the previous round: a record is written before its own checkpoint
    _next_checkpoint: float = 0.0  # the earliest time of the next checkpoint, if checkpoint_every is 0

    def rounds(self) -> Generator[Event | None, None, None]:
        """Run the remaining rounds. None means that work continues and the caller may turn to another run."""
        while not self.is_last(self.progress.round):
            yield from self._round(self.progress.round + 1)

    def is_last(self, round_: int) -> bool:
        """Return whether the run ends with *round_*: it is the planned last one, or patience is over."""
        return round_ == self.train.rounds or self._is_patience_over(round_)

    def _is_patience_over(self, round_: int) -> bool:
        """Return whether *round_* was evaluated, and the best round is at least `patience` rounds before it."""
        best, patience = self.progress.best_round, self.train.patience
        return best > 0 and 0 < patience <= round_ - best and round_ % self.train.evaluate_every == 0

    def _round(self, round_: int) -> Iterator[Event | None]:
        clock = Clock()
        self.traffic = Traffic()
        collected = yield from self._collect_enough(round_)
        clock.lap("train")
        self._check_empty_rounds(collected)
        yield Event(round_, "aggregate")
        if collected.clients:
            self.server = self._apply(collected.aggregator.result())
        clock.lap("aggregate")
        losses = yield from self._train_at_server(collected)
        clock.lap("generator")
        self._add_to_average()
        clock.lap("aggregate")
        evaluation = yield from self._evaluate(round_)
        clock.lap("evaluate")
        notes = self._take_notes(round_)
        for note in notes:
            yield Event(round_, "evaluate", note=note)
        seconds = {**clock.laps, "checkpoint": self._checkpoint_seconds}
        scores: dict[str, Any] = {key: getattr(evaluation, key, None) for key in ("val", "test", "personal", "scored")}
        averaged = evaluation.averaged if evaluation else None
        record = RoundRecord(
            round=round_,
            lr=learning_rate(self.train, round_, 0),
            selected=collected.selected,
            loss=mean_losses(collected.clients),
            clients=collected.clients,
            dropped=collected.dropped,
            generator={name: float(value) for name, value in losses.items()} or None,
            **scores,
            bytes=self.traffic,
            notes=notes,
            seconds={**seconds, "total": sum(seconds.values())},
            averaged=AveragedScores(averaged.val, averaged.test, averaged.scored) if averaged else None,
        )
        yield from self._save(record)

    def _collect_enough(self, round_: int) -> Generator[Event | None, None, Collected]:
        """Repeat the exchange with the clients until there are enough usable updates."""
        needed = min(self.min_updates, count_selected(self.population or 0, self.train.participation))
        for _ in range(self.max_round_attempts):
            collected = yield from self._collect(round_)
            if len(collected.clients) >= needed:
                return collected
        raise FedBMError(
            f"round {round_} was tried {self.max_round_attempts} times and never had enough usable updates "
            f"(min_updates = {self.min_updates}). Start the run again to continue from this round."
        )

    def _collect(self, round_: int) -> Generator[Event | None, None, Collected]:
        """Ask the selected clients for their updates and aggregate the usable ones, in client order."""
        census = self.cohort.census()
        present = sorted(census)
        chosen = select_clients(len(present), self.train.participation, self.task.seed, round_, self.population)
        selected = [present[i] for i in chosen]
        aggregator = self.method.aggregator(self.server, self.population or len(census))
        clients: list[ClientRound] = []
        dropped: list[Dropped] = []
        pieces = broadcast(self.method, self.model, self.server, round_)
        lost = set() if self.method.central else draw_lost(selected, self.train.drop_rate, self.task.seed, round_)
        for client in sorted(lost):  # as in a deployment: it has received the pieces, and its state stays
            held = self.progress.holds.get(client, {})
            missing = [piece for name, piece in pieces.items() if held.get(name) != piece.version]
            self.traffic += Traffic(sent=sum(size_of(piece.state) for piece in missing))
            dropped.append(Dropped(client, LOST))
        yield Event(round_, "train", len(dropped), len(selected))
        for result in self.cohort.exchange(round_, [client for client in selected if client not in lost], pieces):
            if result is None:
                yield None
                continue
            upload = result.upload
            self.traffic += Traffic(result.sent, result.received)
            if result.rejection is None:
                aggregator.add(upload)
                clients.append(ClientRound(upload.client, upload.n, upload.losses, upload.seconds))
            elif self.train.on_nonfinite == "stop" and not result.missing:
                raise DivergenceError(
                    f"round {round_}: the update of client {upload.client} is unusable: {result.rejection}"
                )
            else:
                dropped.append(Dropped(upload.client, result.rejection))
            yield Event(round_, "train", len(clients) + len(dropped), len(selected), upload.losses)
        dropped.sort(key=lambda one: one.client)
        return Collected(round_, tuple(selected), aggregator, tuple(clients), tuple(dropped))

    def _check_empty_rounds(self, collected: Collected) -> None:
        """Raise FedBMError after too many consecutive rounds without a usable update."""
        self.progress.empty_rounds = empty = 0 if collected.clients else self.progress.empty_rounds + 1
        if empty == min(MAX_EMPTY_ROUNDS, self.train.rounds):  # the model of a shorter run would be untrained
            last = collected.dropped[-1]
            raise (FedBMError if last.reason == LOST else DivergenceError)(
                f"round {collected.round}, {empty} in a row: no client sent a usable update (client {last.client}: "
                f"{last.reason}); a lower drop_rate, lr or server_lr may help"
            )

    def _apply(self, mean: State) -> State:
        """Return the new server state: the aggregated one, or a step of the server's optimiser towards it."""
        if self.optimizer is None:
            return mean
        parts = self.method.trained_parts
        names = [name for name, _ in self.model.named_parameters() if name in mean and name.partition(".")[0] in parts]
        return self.optimizer.step(self.server, mean, names)

    def _train_at_server(self, done: Collected) -> Generator[None, None, State]:
        """Take the method's own step at the server, such as training a generator; return its losses."""
        after, losses, device = self.server, State(), next(self.model.parameters()).device
        if done.clients or not self.method.server_step_uses_updates:
            with autocast(device, self.train.precision):
                after, losses = self.method.server_step(self.server, self.model, self.task, done.round, self.steps)
        yield from wait_until_idle(device)
        if after is not self.server and (why := find_nonfinite(after)) is not None:
            rates = " or ".join(name for name in vars(self.method) if name.endswith("_lr")) or "learning rate"
            raise DivergenceError(
                f"round {done.round}: the server's own training failed, {why}; a lower {rates} may help"
            )
        self.server = after
        return losses

    def _add_to_average(self) -> None:
        if self.average is None:
            return
        if (common := self.common_state()) is not None:
            self.average.add(common)
        elif len(self.states) > 1:  # with a single client it would be that client's own model
            raise FedBMError(no_common_model(self.method.name))

    def _evaluate(self, round_: int) -> Generator[Event | None, None, Evaluation | None]:
        """Score the global model if it is due, and keep the evaluation if it is the best so far on validation."""
        if round_ % self.train.evaluate_every and round_ != self.train.rounds:
            return None
        yield Event(round_, "evaluate")
        average = self.average.state() if self.average is not None and self.average.rounds else None
        evaluation = yield from evaluate_round(self, round_, average)
        if evaluation is not None:
            self.progress.last = evaluation
            if is_better(evaluation, self.progress.best):
                self.progress.best = evaluation
                # only a common state is saved with the next checkpoint, never a client's own model
                state = self.common_state() or self.server
                self._best = {name: value.clone() for name, value in state.items()}
        return evaluation

    def _take_notes(self, round_: int) -> tuple[str, ...]:
        """Return the messages to record with this round."""
        if round_ < self.train.rounds and self._is_patience_over(round_):
            self.notes.append(
                f"the run ends here: no better validation score since round {self.progress.best_round} "
                f"(patience = {self.train.patience})"
            )
        notes = tuple(self.notes)
        self.notes.clear()  # back ends append to this list
        return notes

    def _save(self, record: RoundRecord) -> Iterator[Event]:
        """Write the record, then a checkpoint if one is due or the run is stopped here."""
        # write the line before the checkpoint: resuming removes lines after the checkpoint, so none is missing
        self.folder.append(record, has_average=self.average is not None)
        self.progress.round = record.round
        self.progress.bytes_sent += record.bytes.sent
        self.progress.bytes_received += record.bytes.received
        self.progress.seconds += record.seconds["total"]
        due = self._is_checkpoint_due(record.round)
        self._checkpoint_seconds = self._checkpoint() if due else 0.0
        try:
            yield Event(record.round, "done", record=record, last=self.is_last(record.round))
        except GeneratorExit:
            if not due and not sys.is_finalizing():  # nothing can be written while Python exits
                self._checkpoint()
            raise

    def _is_checkpoint_due(self, round_: int) -> bool:
        if self.is_last(round_):
            return True
        if self.checkpoint_every:
            return round_ % self.checkpoint_every == 0
        return time.perf_counter() >= self._next_checkpoint

    def _checkpoint(self) -> float:
        """Write the files that a checkpoint names, then the checkpoint; return the seconds it took."""
        began = time.perf_counter()
        self.states.save()
        if self._best is not None:
            round_ = self.progress.best_round
            save_tensors(best_path(self.folder.path, round_), self._best, {"run": self.run_id, "round": round_})
            self._best = None
        averages = self.average.saved() if self.average is not None else {}
        moments = self.optimizer.moments if self.optimizer is not None else {}
        save_checkpoint(self.folder.path, self.run_id, {**self.server, **averages, **moments}, self.progress)
        ended = time.perf_counter()
        self._next_checkpoint = ended + min((ended - began) / MAX_CHECKPOINT_SHARE, MAX_SECONDS_UNSAVED)
        return ended - began

    def common_state(self) -> State | None:
        """Return the one state that is scored; None if there are several, or if it is a single client's own."""
        several = list(islice(self.method.global_states(self.server, self.states), 2))
        is_personal = self.method.personalises and len(self.states) == 1
        if len(several) != 1 or (is_personal and next(self.method.global_states(self.server, {}), None) is None):
            return None
        return several[0]


def mean_losses(clients: Sequence[ClientRound]) -> dict[str, float]:
    """Return the mean of each loss term over the clients, weighted by their samples."""
    total = sum(client.n for client in clients)
    names = sorted({name for client in clients for name in client.loss})
    return {name: sum(c.n * (c.loss.get(name) or 0.0) for c in clients) / total for name in names}


class Clock:
    """Seconds per phase of a round."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.laps[phase], self._last = self.laps.get(phase, 0.0) + now - self._last, now
