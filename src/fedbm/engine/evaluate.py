"""Score the global model and the clients' own models."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedbm.engine.clients.cohort import ScoringCohort, broadcast, find_nonfinite
from fedbm.engine.device import autocast, wait_until_idle
from fedbm.engine.local_training import Samples
from fedbm.engine.round_record import Evaluation, ModelScores, PersonalScores, Traffic, is_better
from fedbm.engine.server_average import averaged_pieces
from fedbm.errors import DivergenceError, FedBMError
from fedbm.methods.base import Facts, Method, State, find_missing, load_state
from fedbm.utils.metrics import (
    NAMES,
    Array,
    confusion_matrix,
    label_mix_accuracy,
    mean_scores,
    score,
    scores_from_confusion,
)

if TYPE_CHECKING:
    from fedbm.engine.round_loop import RoundLoop

Scores = dict[str, float | None]
Matrices = tuple[tuple[tuple[int, ...], ...], ...]


def predict_probabilities(model: nn.Module, data: Samples) -> Array:
    """Return the class probabilities [n,K] of all samples, in order, with the model in eval mode."""
    return _fetch(_compute_probabilities(model, data), model)


def _compute_probabilities(model: nn.Module, data: Samples) -> torch.Tensor:
    """Return the probabilities where the model is. On a GPU they are queued, and the caller does not wait."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(images).double().softmax(dim=1) for images, _ in data.batches()])


def _fetch(found: torch.Tensor, model: nn.Module) -> Array:
    """Return probabilities as an array; raise FedBMError if they are not finite."""
    if not bool(found.isfinite().all()):
        cause = find_nonfinite(model.state_dict()) or "a lower lr may help"
        raise DivergenceError(f"the model's outputs are not finite, so it cannot be scored; {cause}")
    return np.asarray(found.cpu().numpy())


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
        if missing := find_missing(method, model, state):  # the model would have those of its last client
            raise FedBMError(
                f"{method.name} has no whole model to score: {missing[0]} stays at the clients. Set common_model = "
                "False, or yield whole models in global_states."
            )
        load_state(model, state)
        with autocast(device, precision):
            computed = {name: _compute_probabilities(model, data) for name, data in sets.items()}
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


def score_confusion(matrix: Array) -> Scores:
    """Return the scores of a confusion matrix. The AUC is None because it needs probabilities."""
    values: Scores = {**scores_from_confusion(matrix), "auc": None}
    return {name: values[name] for name in NAMES}


def personal_confusion(model: nn.Module, state: State, data: Samples) -> Array:
    """Return the confusion matrix [K,K] of one client's own model on these samples."""
    load_state(model, state)
    predicted = predict_probabilities(model, data)
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
        matrix = personal_confusion(model, method.personal_state(server, state), data)
        if (accuracy := label_mix_accuracy(matrix, facts[client].label_counts)) is not None:
            scores[str(client)] = accuracy
    return PersonalScores(float(np.mean(list(scores.values()))), scores) if scores else None


def evaluate_round(loop: RoundLoop, round_: int, average: State | None) -> Generator[None, None, Evaluation | None]:
    """Score the loop's global model and the *average*. The last round, and one better than the best, get all scores.

    Returns None if there is no global model yet: it is made of clients' models, and no update was usable so far.
    """
    # the average first, so that the model holds the raw state afterwards
    averaged = (yield from _score(loop, round_, average)) if average is not None else None
    found = yield from _score(loop, round_)
    if found is None:
        return None
    evaluation = Evaluation(**found, round=round_, averaged=averaged)
    is_last = loop.is_last(round_)
    if not is_last and not is_better(evaluation, loop.progress.best):
        return evaluation
    more: dict[str, Any] = {}
    if loop.held_out is not None:
        if is_last and average is not None and averaged is not None:
            averaged = dataclasses.replace(averaged, held_out=(yield from _score_held_out(loop, [average])))
        states = loop.method.global_states(loop.server, loop.states)
        more = {"averaged": averaged, "held_out": (yield from _score_held_out(loop, states))}
    if loop.sets and loop.method.personalises:  # it costs one evaluation per client
        facts, test = loop.cohort.census(), loop.sets["test"]
        with autocast(test.labels.device, loop.train.precision):
            more["personal"] = personal_score(loop.method, loop.model, loop.server, loop.states, facts, test)
    return dataclasses.replace(evaluation, **more)


def _score(loop: RoundLoop, round_: int, averaged: State | None = None) -> Generator[None, None, ModelScores | None]:
    """Score the global model, or the *averaged* one: here or, if there are no sets, at the clients."""
    if loop.sets:
        states = [averaged] if averaged is not None else loop.method.global_states(loop.server, loop.states)
        scores = yield from score_states(loop.method, loop.model, states, loop.sets, loop.train.precision)
        return join_scores(scores) if scores else None
    assert isinstance(loop.cohort, ScoringCohort)
    pieces = broadcast(loop.method, loop.model, loop.server, round_ + 1)
    if averaged is not None:
        pieces = averaged_pieces(pieces, averaged, round_ + 1)
    for answer in loop.cohort.score(round_, pieces):
        if answer is not None:
            found, sent = answer
            loop.traffic += Traffic(sent=sent)
            return found if averaged is None else dataclasses.replace(found, personal=None)
        yield None
    raise FedBMError(
        f"round {round_}: too few clients scored the model. Start the run again to continue from this round."
    )


def _score_held_out(loop: RoundLoop, states: Iterable[State]) -> Generator[None, None, Matrices]:
    """Return the confusion matrix of *states* for each held-out client."""
    assert loop.held_out is not None
    sets = {"held_out": loop.held_out}
    scores = yield from score_states(loop.method, loop.model, states, sets, loop.train.precision)
    assert scores is not None
    return nested_tuples(scores["held_out"][1])


def join_scores(scores: Mapping[str, tuple[Scores, Array]]) -> ModelScores:
    """Join scores and confusion matrices on "val" and "test"."""
    (val, _), (test, confusion) = scores["val"], scores["test"]
    by_source = nested_tuples(confusion) if confusion.ndim == 3 else None
    total = confusion.sum(axis=0) if confusion.ndim == 3 else confusion
    return ModelScores(val=val, test=test, confusion=tuple(map(tuple, total.tolist())), by_source=by_source)


def nested_tuples(matrices: Array) -> Matrices:
    """Return matrices [S,K,K] as tuples."""
    return tuple(tuple(map(tuple, matrix.tolist())) for matrix in matrices)
