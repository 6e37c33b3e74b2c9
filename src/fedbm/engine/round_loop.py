"""The round loop, written once over a cohort: select → broadcast → train → aggregate → evaluate → record.

It yields wherever it has waited, so that a driver can show progress, stop, or advance many runs by turns. When it
yields a record, that round is in rounds.jsonl; closed then, it writes a checkpoint. A run that is stopped resumes from
its last checkpoint.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn

from fedbm.config.options import TrainOptions
from fedbm.engine.checkpoint import ClientStates, Progress, best_path, save_checkpoint, save_tensors
from fedbm.engine.clients.base import Cohort, ScoringCohort, find_nonfinite
from fedbm.engine.device import autocast, wait_until_idle
from fedbm.engine.evaluate import first_state, global_score, personal_score, score_states
from fedbm.engine.local_training import Samples, learning_rate
from fedbm.engine.run_folder import RunFolder
from fedbm.engine.server_average import ServerAverage, averaged_parts, no_common_model
from fedbm.errors import FedBMError
from fedbm.methods.base import Aggregator, Method, Part, State, Steps, Task
from fedbm.utils.seeds import numpy_rng

CHECKPOINTS_SHARE = 50  # one part of so many is the most time that checkpoints take, unless their rounds are given
MOST_UNSAVED = 60.0  # seconds, however long a checkpoint takes
MOST_EMPTY_ROUNDS = 10  # without one usable update; then something is wrong for good


@dataclass(frozen=True)
class Event:
    """Something worth showing: a client done, a phase begun, or a whole round with its record."""

    round: int
    phase: str  # train | aggregate | evaluate | done
    done: int = 0
    total: int = 0
    losses: Mapping[str, float] | None = None
    record: dict[str, Any] | None = None
    note: str = ""  # something the engine has to say, such as that it continues with fewer slots


def select(clients: int, participation: float, seed: int, round_: int) -> list[int]:
    """max(1, ⌊participation·N⌋) clients, in order, from the stream (seed, "selection", round); nobody where N is 0."""
    if not clients:
        return []
    count = max(1, math.floor(participation * clients + 1e-9))  # 0.29 · 100 is 28.999…
    chosen = numpy_rng(seed, "selection", round_).choice(clients, size=count, replace=False)
    return sorted(int(client) for client in chosen)


@dataclass(frozen=True)
class Collected:
    """One attempt at a round: who was asked, whose update was used or left out, and what aggregates them."""

    selected: list[int]
    aggregator: Aggregator
    clients: list[dict[str, Any]]
    dropped: list[dict[str, Any]]


@dataclass
class Federation:
    """One run in memory: what its rounds need, and where it stands.

    Where clients can stay silent, a round with fewer than *min_updates* usable updates is tried again, up to
    *max_round_attempts* times, and never counted; *population* is N, however many can be asked just now.
    Without *sets* of its own the server asks its clients for scores.
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
    checkpoint_every: int = 0  # rounds; 0: by their share of the time
    notes: list[str] = field(default_factory=list)  # what the engine said and is not yet recorded
    min_updates: int = 0
    max_round_attempts: int = 1
    population: int | None = None
    average: ServerAverage | None = None  # of the server's models over rounds, where it is asked for
    _best: State | None = None  # the best so far, until the next checkpoint
    _checkpoint_seconds: float = 0.0  # of the round before: a record is written ahead of its own checkpoint
    _next_checkpoint: float = 0.0  # no sooner than then, where rounds between checkpoints are not given

    def rounds(self) -> Generator[Event | None, None, None]:
        """Play the rounds that are left; None means that work continues, and a driver may turn to another run."""
        while self.progress.round < self.train.rounds:
            yield from self._round(self.progress.round + 1)

    def _round(self, round_: int) -> Iterator[Event | None]:
        clock = Clock()
        method, train = self.method, self.train
        traffic = {"sent": 0, "received": 0}
        for _ in range(self.max_round_attempts):
            collected = yield from self._collect(round_, traffic)
            clients, dropped = collected.clients, collected.dropped
            if len(clients) >= min(self.min_updates, max(1, len(collected.selected))):
                break
        else:
            raise FedBMError(
                f"round {round_} was tried {self.max_round_attempts} times and never had enough usable updates "
                f"(min_updates = {self.min_updates}); started again, the run resumes from here"
            )
        clock.lap("train")
        self.progress.empty_rounds = 0 if clients else self.progress.empty_rounds + 1
        if self.progress.empty_rounds == min(MOST_EMPTY_ROUNDS, train.rounds):  # a short run's model would be untrained
            last, empty = dropped[-1], self.progress.empty_rounds
            running = f"in {empty} rounds running no client" if empty > 1 else "no client"
            raise FedBMError(
                f"round {round_}: {running} sent a usable update (client {last['client']}: {last['reason']}); "
                "a lower lr may help"
            )
        yield Event(round_, "aggregate")
        if clients:
            self.server = collected.aggregator.result()
        clock.lap("aggregate")
        with self._autocast():
            after, server_losses = method.server_step(self.server, self.model, self.task, round_, self.steps)
        yield from wait_until_idle(self._device)
        if after is not self.server and (problem := find_nonfinite(after)) is not None:
            raise FedBMError(
                f"round {round_}: the server's own training failed, {problem}; a lower generator_lr may help"
            )
        self.server = after
        clock.lap("generator")
        if self.average is not None:
            trained = self.states.method_states()
            common = self.common_state(trained)
            if common is not None:
                self.average.add(common)
            elif len(trained) > 1:  # of a single client it would be that client's own model
                raise FedBMError(no_common_model(method.name))
            clock.lap("aggregate")
        evaluation = None
        if round_ % train.evaluate_every == 0 or round_ == train.rounds:
            yield Event(round_, "evaluate")
            evaluation = yield from self._evaluate(round_, traffic)
        clock.lap("evaluate")
        said = self.notes.copy()
        self.notes.clear()
        for note in said:
            yield Event(round_, "evaluate", note=note)
        clock.laps["checkpoint"] = self._checkpoint_seconds
        record = {
            "round": round_,
            "lr": learning_rate(train, round_, 0),
            "selected": collected.selected,
            "loss": mean_losses(clients),
            "clients": clients,
            "dropped": dropped,
            "generator": {name: float(value) for name, value in server_losses.items()} or None,
            "val": evaluation["val"] if evaluation else None,
            "test": evaluation["test"] if evaluation else None,
            "personal": evaluation["personal"] if evaluation else None,
            "scored": evaluation.get("scored") if evaluation else None,
            "bytes": traffic,
            "notes": said,
            "seconds": {**clock.laps, "total": sum(clock.laps.values())},
        }
        if self.average is not None:
            averaged = (evaluation or {}).get("averaged")
            kept = ("val", "test", "scored")
            record["averaged"] = {key: averaged[key] for key in kept if key in averaged} if averaged else None
        # first the line, then the checkpoint: lines beyond the last checkpoint are cut off on resuming, none is lost
        self.folder.append(record)
        self.progress.round = round_
        self.progress.bytes_sent += traffic["sent"]
        self.progress.bytes_received += traffic["received"]
        self.progress.seconds += sum(clock.laps.values())
        due = self._due(round_)
        self._checkpoint_seconds = self._checkpoint() if due else 0.0
        try:
            yield Event(round_, "done", record=record)
        except GeneratorExit:
            if not due and not sys.is_finalizing():  # when Python itself ends, nothing can be written any more
                self._checkpoint()
            raise

    def _due(self, round_: int) -> bool:
        if round_ == self.train.rounds:
            return True
        if self.checkpoint_every:
            return round_ % self.checkpoint_every == 0
        return time.perf_counter() >= self._next_checkpoint

    def _checkpoint(self) -> float:
        """Write it, first what it names; the seconds that took."""
        began = time.perf_counter()
        self.states.save()
        if self._best is not None:
            round_ = self.progress.best_round
            save_tensors(best_path(self.folder.path, round_), self._best, {"run": self.run_id, "round": round_})
            self._best = None
        averages = self.average.saved() if self.average is not None else {}
        save_checkpoint(self.folder.path, self.run_id, {**self.server, **averages}, self.progress)
        ended = time.perf_counter()
        self._next_checkpoint = ended + min(CHECKPOINTS_SHARE * (ended - began), MOST_UNSAVED)
        return ended - began

    def _collect(self, round_: int, traffic: dict[str, int]) -> Generator[Event | None, None, Collected]:
        """Ask the selected clients for their updates and aggregate those that are usable, in client order."""
        census = self.cohort.census()
        present = sorted(census)
        selected = [present[i] for i in select(len(present), self.train.participation, self.task.seed, round_)]
        aggregator = self.method.aggregator(self.server, self.population or len(census))
        clients: list[dict[str, Any]] = []
        dropped: list[dict[str, Any]] = []
        yield Event(round_, "train", 0, len(selected))
        for result in self.cohort.exchange(round_, selected, self.method.broadcast(self.server, round_)):
            if result is None:
                yield None
                continue
            upload = result.upload
            traffic["sent"] += result.sent
            traffic["received"] += result.received
            if result.rejection is None:
                aggregator.add(upload)
                clients.append(
                    {"client": upload.client, "n": upload.n, "loss": upload.losses, "seconds": upload.seconds}
                )
            elif self.train.on_nonfinite == "stop" and not result.missing:
                raise FedBMError(
                    f"round {round_}: the update of client {upload.client} is unusable: {result.rejection}"
                )
            else:
                dropped.append({"client": upload.client, "reason": result.rejection})
            yield Event(round_, "train", len(clients) + len(dropped), len(selected), upload.losses)
        return Collected(selected, aggregator, clients, dropped)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _autocast(self) -> torch.autocast:
        return autocast(self._device, self.train.precision)

    def _evaluate(self, round_: int, traffic: dict[str, int]) -> Generator[None, None, dict[str, Any] | None]:
        """Score the global states; keep the evaluation if it is the best so far on validation.

        None where there is nothing to score yet: a method's model is made of clients' own, and none was usable so far.
        """
        clients = self.states.method_states()
        averaged = None
        if self.average is not None and self.average.rounds:  # first: the model is left as it is without an average
            averaged = yield from self._evaluate_average(self.average.state(), round_, traffic)
        if self.sets:
            with self._autocast():
                scores = self._score(clients)
            if scores is None:
                return None
        else:
            scores = yield from self._ask_for_scores(round_, self.method.broadcast(self.server, round_ + 1))
            traffic["sent"] += scores.pop("sent")
        evaluation = {"round": round_, **scores}
        if self.average is not None:
            evaluation["averaged"] = averaged
        self.progress.last = evaluation
        best_so_far = self.progress.best is None or selection_score(evaluation) > selection_score(self.progress.best)
        if self.sets and (best_so_far or round_ == self.train.rounds):
            with self._autocast():
                evaluation["personal"] = self._personal_score(clients)
        if best_so_far:
            self.progress.best = evaluation
            # one common state is saved, with the next checkpoint; a client's own model never is
            best = self.common_state(clients) or self.server
            self._best = {name: value.clone() for name, value in best.items()}
        return evaluation

    def _score(self, clients: Mapping[int, State]) -> dict[str, Any] | None:
        """On the server's own images."""
        scores = global_score(self.method, self.model, self.server, clients, self.sets)
        if scores is None:
            return None
        return {
            "val": scores["val"][0],
            "test": scores["test"][0],
            "confusion": scores["test"][1].tolist(),
            "personal": None,
        }

    def _personal_score(self, clients: Mapping[int, State]) -> dict[str, Any] | None:
        """Of the rounds that can be reported alone: it costs as many evaluations as there are clients."""
        facts = self.cohort.census() if self.method.personalises and clients else {}
        return personal_score(self.method, self.model, self.server, clients, facts, self.sets["test"])

    def _evaluate_average(
        self, state: State, round_: int, traffic: dict[str, int]
    ) -> Generator[None, None, dict[str, Any]]:
        """Score the averaged model where the model itself is scored: val, test, and the confusion matrix of test."""
        if self.sets:
            with self._autocast():
                scores = score_states(self.method, self.model, [state], self.sets)
            return {"val": scores["val"][0], "test": scores["test"][0], "confusion": scores["test"][1].tolist()}
        parts = averaged_parts(self.method.broadcast(self.server, round_ + 1), state, round_ + 1)
        found = yield from self._ask_for_scores(round_, parts)
        traffic["sent"] += found["sent"]
        return {key: found[key] for key in ("val", "test", "confusion", "scored")}

    def _ask_for_scores(self, round_: int, parts: Mapping[str, Part]) -> Generator[None, None, dict[str, Any]]:
        """On the clients' own images, where the server has none."""
        assert isinstance(self.cohort, ScoringCohort)
        for found in self.cohort.score(round_, parts):
            if found is not None:
                return found
            yield None
        raise FedBMError(f"round {round_}: too few clients scored the model; started again, the run resumes from here")

    def common_state(self, clients: Mapping[int, State]) -> State | None:
        """The one state that makes the global score, or None where several do or it is a single client's own."""
        if first_state(self.method, self.server, clients) is None:
            return None
        if self.method.personalises and len(clients) == 1 and first_state(self.method, self.server, {}) is None:
            return None
        several = list(islice(self.method.global_states(self.server, clients), 2))
        return several[0] if len(several) == 1 else None


def selection_score(evaluation: Mapping[str, Any]) -> float:
    """Validation accuracy + macro-F1: the round with the highest is reported, the earliest on ties."""
    return float(evaluation["val"]["accuracy"] + evaluation["val"]["f1"])


def mean_losses(clients: list[dict[str, Any]]) -> dict[str, float]:
    """Each loss term's mean over the clients that took part, weighted by their samples."""
    total = sum(entry["n"] for entry in clients)
    names = sorted({name for entry in clients for name in entry["loss"]})
    return {name: sum(e["n"] * e["loss"].get(name, 0.0) for e in clients) / total for name in names}


class Clock:
    """Seconds per phase of a round."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.laps[phase], self._last = self.laps.get(phase, 0.0) + now - self._last, now
