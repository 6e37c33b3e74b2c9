"""Score the global model and the clients' own models."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from fedbm.engine.clients.cohort import Cohort, ScoringCohort, broadcast
from fedbm.engine.device import autocast, wait_until_idle
from fedbm.engine.local_training import Samples
from fedbm.engine.round_record import Evaluation, ModelScores, PersonalScores, is_better
from fedbm.engine.server_average import averaged_pieces
from fedbm.errors import DivergenceError, FedBMError
from fedbm.methods._average import NothingToAverage
from fedbm.methods.base import Facts, Method, State, load_state
from fedbm.utils.metrics import (
    NAMES,
    Array,
    confusion_matrix,
    label_mix_accuracy,
    mean_scores,
    score,
    scores_from_confusion,
)

Scores = dict[str, float | None]
ScoresT = TypeVar("ScoresT", bound=ModelScores)


def predict_probabilities(method: Method, model: nn.Module, data: Samples) -> Array:
    """Return the class probabilities [n,K] of all samples, in order, with the model in eval mode."""
    return _fetch(_compute_probabilities(method, model, data), model)


def _compute_probabilities(method: Method, model: nn.Module, data: Samples) -> torch.Tensor:
    """Return the probabilities where the model is. On a GPU they are queued, and the caller does not wait."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([method.logits(model, images).double().softmax(dim=1) for images, _ in data.batches()])


def _fetch(found: torch.Tensor, model: nn.Module) -> Array:
    """Return probabilities as an array; raise FedBMError if they are not finite."""
    if not bool(found.isfinite().all()):
        raise DivergenceError(f"the model's outputs are not finite, so it cannot be scored; {_find_cause(model)}")
    return np.asarray(found.cpu().numpy())


def _find_cause(model: nn.Module) -> str:
    """Return which tensor of the model is the first that is not finite or not possible, or advice if all are."""
    for name, value in model.state_dict().items():
        if name.endswith("running_var") and bool((value < 0).any()):
            return f"{name} has negative values, but is a variance: average BatchNorm statistics plainly"
        if not bool(value.isfinite().all()):
            return f"{name} is not finite"
    return "a lower lr may help"


def score_states(
    method: Method, model: nn.Module, states: Iterable[State], sets: Mapping[str, Samples], precision: str
) -> Generator[None, None, dict[str, tuple[Scores, Array]] | None]:
    """Return the scores and the confusion matrix of *states* for each set; None if there are no states.

    Yield while a GPU computes, so that other runs of the process continue. Several states either vote (mean of the
    probabilities) or are scored one by one (mean of scores, sum of matrices).
    """
    device = next(model.parameters()).device
    found: dict[str, list[tuple[Scores, Array]]] = {name: [] for name in sets}
    votes: dict[str, Array] = {}
    for state in states:
        load_state(model, state)
        with autocast(device, precision):
            computed = {name: _compute_probabilities(method, model, data) for name, data in sets.items()}
        yield from wait_until_idle(device)
        for name, data in sets.items():
            predicted = _fetch(computed[name], model)
            if method.ensemble:
                votes[name] = votes[name] + predicted if name in votes else predicted
            else:
                found[name].append(score_samples(data, predicted))
    for name, total in votes.items():
        found[name].append(score_samples(sets[name], total / total.sum(axis=1, keepdims=True)))
    if not any(found.values()):
        return None
    return {
        name: (mean_scores([s for s, _ in pairs]), np.sum([m for _, m in pairs], axis=0))
        for name, pairs in found.items()
    }


def score_samples(data: Samples, predicted: Array) -> tuple[Scores, Array]:
    """Return scores and the confusion matrix [K,K]. If the samples have sources, return a matrix for each, [S,K,K]."""
    truth = data.labels[data.indices].cpu().numpy()
    scores, matrix = score(truth, predicted)
    if data.sources is None:
        return scores, matrix
    guess, classes = predicted.argmax(axis=1), predicted.shape[1]
    masks = [data.sources == source for source in range(int(data.sources.max()) + 1)]
    return scores, np.stack([confusion_matrix(truth[mask], guess[mask], classes) for mask in masks])


def global_states(method: Method, server: State, clients: Mapping[int, State]) -> Iterator[State]:
    """Yield the method's global states: none if they are made of client states and *clients* is empty."""
    with suppress(NothingToAverage):
        yield from method.global_states(server, clients)


def score_confusion(matrix: Array) -> Scores:
    """Return the scores of a confusion matrix. The AUC is None because it needs probabilities."""
    values: Scores = {**scores_from_confusion(matrix), "auc": None}
    return {name: values[name] for name in NAMES}


def personal_confusion(method: Method, model: nn.Module, state: State, data: Samples) -> Array:
    """Return the confusion matrix [K,K] of one client's own model on these samples."""
    load_state(model, state)
    predicted = predict_probabilities(method, model, data)
    return confusion_matrix(data.labels[data.indices].cpu().numpy(), predicted.argmax(axis=1), predicted.shape[1])


def personal_score(
    method: Method,
    model: nn.Module,
    server: State,
    clients: Mapping[int, State],
    facts: Mapping[int, Facts],
    data: Samples,
) -> PersonalScores | None:
    """Return the accuracy of each client's own model on common samples, weighted by that client's label mix."""
    scores: dict[str, float] = {}
    for client, state in clients.items():
        matrix = personal_confusion(method, model, method.personal_state(server, state), data)
        if (accuracy := label_mix_accuracy(matrix, facts[client].label_counts)) is not None:
            scores[str(client)] = accuracy
    return PersonalScores(float(np.mean(list(scores.values()))), scores) if scores else None


@dataclass
class RoundScorer:
    """The models of one round, and where they are scored. `sent` counts the bytes sent to clients that score."""

    round: int
    method: Method
    model: nn.Module
    server: State
    clients: Mapping[int, State]
    cohort: Cohort
    sets: Mapping[str, Samples]
    held_out: Samples | None
    precision: str
    sent: int = 0

    def evaluate(
        self, average: State | None, best: Evaluation | None, is_last: bool
    ) -> Generator[None, None, Evaluation | None]:
        """Score the global model and the *average*. The last round, and one better than *best*, get all scores.

        Returns None if there is no global model yet: it is made of clients' models, and no update was usable so far.
        """
        # the average first, so that the model holds the raw state afterwards
        averaged = (yield from self._score(average)) if average is not None else None
        found = yield from self._score()
        if found is None:
            return None
        evaluation = Evaluation(**found, round=self.round, averaged=averaged)
        if not is_last and not is_better(evaluation, best):
            return evaluation
        if self.held_out is not None:
            if is_last and average is not None and averaged is not None:
                averaged = yield from self._score_held_out(averaged, [average])
                evaluation = dataclasses.replace(evaluation, averaged=averaged)
            states = global_states(self.method, self.server, self.clients)
            evaluation = yield from self._score_held_out(evaluation, states)
        if self.sets and self.method.personalises:  # it costs one evaluation per client
            facts, test = self.cohort.census(), self.sets["test"]
            with autocast(next(self.model.parameters()).device, self.precision):
                personal = personal_score(self.method, self.model, self.server, self.clients, facts, test)
            evaluation = dataclasses.replace(evaluation, personal=personal)
        return evaluation

    def _score(self, averaged: State | None = None) -> Generator[None, None, ModelScores | None]:
        """Score the global model, or the *averaged* one: here or, if there are no sets, at the clients."""
        if self.sets:
            states = [averaged] if averaged is not None else global_states(self.method, self.server, self.clients)
            scores = yield from score_states(self.method, self.model, states, self.sets, self.precision)
            return join_scores(scores) if scores else None
        assert isinstance(self.cohort, ScoringCohort)
        pieces = broadcast(self.method, self.model, self.server, self.round + 1)
        if averaged is not None:
            pieces = averaged_pieces(pieces, averaged, self.round + 1)
        for answer in self.cohort.score(self.round, pieces):
            if answer is not None:
                found, sent = answer
                self.sent += sent
                return found if averaged is None else dataclasses.replace(found, personal=None)
            yield None
        raise FedBMError(
            f"round {self.round}: too few clients scored the model. Start the run again to continue from this round."
        )

    def _score_held_out(self, found: ScoresT, states: Iterable[State]) -> Generator[None, None, ScoresT]:
        """Return *found* with the confusion matrix of *states* for each held-out client."""
        assert self.held_out is not None
        sets = {"held_out": self.held_out}
        scores = yield from score_states(self.method, self.model, states, sets, self.precision)
        assert scores is not None
        _, matrices = scores["held_out"]
        return dataclasses.replace(found, held_out=nested_tuples(matrices))


def join_scores(scores: Mapping[str, tuple[Scores, Array]]) -> ModelScores:
    """Join scores and confusion matrices on "val" and "test"."""
    (val, _), (test, confusion) = scores["val"], scores["test"]
    by_source = nested_tuples(confusion) if confusion.ndim == 3 else None
    total = confusion.sum(axis=0) if confusion.ndim == 3 else confusion
    return ModelScores(val=val, test=test, confusion=tuple(map(tuple, total.tolist())), by_source=by_source)


def nested_tuples(matrices: Array) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return matrices [S,K,K] as tuples."""
    return tuple(tuple(map(tuple, matrix.tolist())) for matrix in matrices)
