"""Scores of a method's global states on a common set of samples, and of clients' own models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain

import numpy as np
import torch
from torch import nn

from fedbm.engine.local_training import Samples
from fedbm.engine.records import PersonalScores
from fedbm.errors import FedBMError
from fedbm.methods._average import NothingToAverage
from fedbm.methods.base import Facts, Method, State, load_state
from fedbm.utils.metrics import NAMES, Array, confusion_matrix, from_confusion, label_mix_accuracy, mean_scores, score

Scores = dict[str, float | None]


def probabilities(method: Method, model: nn.Module, data: Samples) -> Array:
    """softmax of the method's logits for every sample, in order, [n,K]; the model as it stands, in eval mode."""
    model.eval()
    with torch.inference_mode():
        parts = [method.logits(model, images).double().softmax(dim=1) for images, _ in data.batches()]
        found = torch.cat(parts)
    if not bool(found.isfinite().all()):
        raise FedBMError("the model's outputs are not finite, so it cannot be scored; a lower lr may help")
    return np.asarray(found.cpu().numpy())


def global_score(
    method: Method, model: nn.Module, server: State, clients: Mapping[int, State], sets: Mapping[str, Samples]
) -> dict[str, tuple[Scores, Array]] | None:
    """score_states() of the method's global states; None where there is none: they are made of clients' own, and
    *clients* has none."""
    states = global_states(method, server, clients)
    if (first := next(states, None)) is None:
        return None
    return score_states(method, model, chain([first], states), sets)


def score_states(
    method: Method, model: nn.Module, states: Iterable[State], sets: Mapping[str, Samples]
) -> dict[str, tuple[Scores, Array]]:
    """For each named set, the scores of these states together and their confusion matrix.

    Several states either vote (mean probabilities) or are scored one by one (mean scores, summed matrices).
    """
    truths = {name: data.labels[data.indices].cpu().numpy() for name, data in sets.items()}
    found: dict[str, list[tuple[Scores, Array]]] = {name: [] for name in sets}
    votes: dict[str, Array] = {name: np.zeros(1) for name in sets}
    for state in states:
        load_state(model, state)
        for name, data in sets.items():
            guessed = probabilities(method, model, data)
            if method.ensemble:
                votes[name] = votes[name] + guessed
            else:
                found[name].append(score(truths[name], guessed))
    if method.ensemble:
        return {name: score(truths[name], total / total.sum(axis=1, keepdims=True)) for name, total in votes.items()}
    return {
        name: (mean_scores([s for s, _ in pairs]), np.sum([m for _, m in pairs], axis=0))
        for name, pairs in found.items()
    }


def global_states(method: Method, server: State, clients: Mapping[int, State]) -> Iterator[State]:
    """The method's, or none where they would be a mean over clients and *clients* has none."""
    with suppress(NothingToAverage):
        yield from method.global_states(server, clients)


def first_state(method: Method, server: State, clients: Mapping[int, State]) -> State | None:
    """The first of the global states; None where they are made of clients' own and *clients* has none."""
    return next(global_states(method, server, clients), None)


def from_matrix(matrix: Array) -> Scores:
    """Scores of a confusion matrix alone. It cannot tell the AUC, so that is None."""
    values: Scores = {**from_confusion(matrix), "auc": None}
    return {name: values[name] for name in NAMES}


def personal_confusion(method: Method, model: nn.Module, state: State, data: Samples) -> Array:
    """[K,K] counts of one client's own model on these samples."""
    load_state(model, state)
    guessed = probabilities(method, model, data)
    return confusion_matrix(data.labels[data.indices].cpu().numpy(), guessed.argmax(axis=1), guessed.shape[1])


def personal_score(
    method: Method,
    model: nn.Module,
    server: State,
    clients: Mapping[int, State],
    facts: Mapping[int, Facts],
    data: Samples,
) -> PersonalScores | None:
    """Accuracy of each given client's own model on the common samples, weighted to that client's label mix."""
    if not method.personalises:
        return None
    scores: dict[str, float] = {}
    for client in clients:
        matrix = personal_confusion(method, model, method.personal_state(server, clients[client]), data)
        accuracy = label_mix_accuracy(matrix, facts[client].label_counts)
        if accuracy is not None:
            scores[str(client)] = accuracy
    if not scores:
        return None
    return PersonalScores(float(np.mean(list(scores.values()))), scores)
