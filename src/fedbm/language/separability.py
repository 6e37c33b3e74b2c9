"""Measure how well a language model separates the concepts, and describe it in sentences a clinician can act on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbm.errors import shorten_list

MAX_COSINE = 0.95  # a classifier can hardly separate class means with a higher cosine
MAX_NAMED = 5  # pairs or classes named in one sentence; the rest are counted


def cosines_between_means(embeddings: Tensor) -> Tensor:
    """Return cos(μ_i, μ_j) [K,K] from embeddings [K,M,D]."""
    unit = normalize(embeddings.mean(dim=1), dim=1)
    return unit @ unit.T


def count_misassigned(embeddings: Tensor) -> Tensor:
    """Return [K,K]: how many prompts of class i, left out of its mean, are nearest to the mean of class j ≠ i."""
    count, per_class, _ = embeddings.shape
    means = embeddings.mean(dim=1)
    distance = torch.cdist(embeddings, means.expand(count, -1, -1))  # [K,M,K]
    own = torch.arange(count)
    # Leaving prompt m out moves the mean away from it by a factor of exactly M / (M − 1).
    distance[own, :, own] *= per_class / (per_class - 1)
    nearest = distance.argmin(dim=2)  # [K,M]
    hits = torch.nn.functional.one_hot(nearest, count).sum(dim=1)
    return hits.masked_fill(torch.eye(count, dtype=torch.bool), 0)


def describe_separability(classes: Sequence[str], texts: Sequence[str], embeddings: Tensor) -> list[str]:
    """Return the range of cosines, then one sentence for each kind of problem, or a sentence that there is none."""
    similar = cosines_between_means(embeddings)
    pairs = [(i, j) for i in range(len(classes)) for j in range(i + 1, len(classes))]
    between = torch.stack([similar[i, j] for i, j in pairs])
    summary = (
        f"The cosines between the means of the {len(classes)} concepts are {between.min():.2f} to {between.max():.2f}, "
        f"{between.mean():.2f} on average."
    )
    problems = [
        *_describe_equal_texts(classes, texts, pairs),
        *_describe_similar_concepts(classes, texts, pairs, between),
        *_describe_misassigned(classes, embeddings),
    ]
    sound = "All concepts are well separated: no two are nearly equal, and every prompt is nearest to its own class."
    return [summary, *(problems or [sound])]


def _describe_equal_texts(classes: Sequence[str], texts: Sequence[str], pairs: Sequence[tuple[int, int]]) -> list[str]:
    return [
        f'"{classes[i]}" and "{classes[j]}" have the same concept text "{texts[i]}"; describe how they differ.'
        for i, j in pairs
        if texts[i] == texts[j]
    ]


def _describe_similar_concepts(
    classes: Sequence[str], texts: Sequence[str], pairs: Sequence[tuple[int, int]], between: Tensor
) -> list[str]:
    close = [
        (float(cosine), f'"{classes[i]}" and "{classes[j]}" ({cosine:.2f})')
        for (i, j), cosine in zip(pairs, between, strict=True)
        if cosine > MAX_COSINE and texts[i] != texts[j]
    ]
    if not close:
        return []
    return [f"The language model hardly distinguishes {_join_worst(close)}; use texts that differ more."]


def _describe_misassigned(classes: Sequence[str], embeddings: Tensor) -> list[str]:
    counts = count_misassigned(embeddings)
    per_class = embeddings.shape[1]
    found = [
        (
            int(row.sum()),
            f'"{name}" ({int(row.sum())} of {per_class} prompts, mostly "{classes[int(row.argmax())]}")',
        )
        for name, row in zip(classes, counts, strict=True)
        if row.any()
    ]
    if not found:
        return []
    return [f"Some prompts are nearer to another class than to their own: {_join_worst(found)}."]


def _join_worst(scored: Sequence[tuple[float, str]]) -> str:
    """Join the descriptions with the highest scores."""
    return shorten_list([text for _, text in sorted(scored, key=lambda pair: -pair[0])], MAX_NAMED)
