"""Can a language model tell the concepts apart? What is measured, in sentences a clinician can act on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

NEARLY_ONE = 0.95  # class means with a higher cosine leave a classifier hardly an angle to work with
NAMED = 5  # pairs or classes named in one sentence; the rest are counted


def cosines(embeddings: Tensor) -> Tensor:
    """[K,K]: cos(μ_i, μ_j) from embeddings [K,M,D]."""
    unit = normalize(embeddings.mean(dim=1), dim=1)
    return unit @ unit.T


def strays(embeddings: Tensor) -> Tensor:
    """[K,K]: how many prompts of class i, left out of its mean, lie nearer to the mean of class j ≠ i."""
    count, per_class, _ = embeddings.shape
    means = embeddings.mean(dim=1)
    distance = torch.cdist(embeddings, means.expand(count, -1, -1))  # [K,M,K]
    own = torch.arange(count)
    # Without prompt m the mean moves so that the distance grows by exactly M / (M − 1).
    distance[own, :, own] *= per_class / (per_class - 1)
    nearest = distance.argmin(dim=2)  # [K,M]
    hits = torch.nn.functional.one_hot(nearest, count).sum(dim=1)
    return hits.masked_fill(torch.eye(count, dtype=torch.bool), 0)


def diagnose(classes: Sequence[str], texts: Sequence[str], embeddings: Tensor) -> list[str]:
    """First the range of similarities, then one sentence for each kind of trouble, or that there is none."""
    similar = cosines(embeddings)
    pairs = [(i, j) for i in range(len(classes)) for j in range(i + 1, len(classes))]
    between = torch.stack([similar[i, j] for i, j in pairs])
    sentences = [
        f"The {len(classes)} concepts have cosines of {between.min():.2f} to {between.max():.2f} "
        f"between their means, {between.mean():.2f} on average."
    ]
    trouble = [
        *_same_text(classes, texts, pairs),
        *_nearly_one(classes, texts, pairs, between),
        *_strays(classes, embeddings),
    ]
    if not trouble:
        return [
            *sentences,
            "No two concepts are nearly alike and every left-out prompt is nearest to its own class.",
        ]
    return sentences + trouble


def _same_text(classes: Sequence[str], texts: Sequence[str], pairs: Sequence[tuple[int, int]]) -> list[str]:
    return [
        f'"{classes[i]}" and "{classes[j]}" share the concept text "{texts[i]}"; say what sets them apart.'
        for i, j in pairs
        if texts[i] == texts[j]
    ]


def _nearly_one(
    classes: Sequence[str], texts: Sequence[str], pairs: Sequence[tuple[int, int]], between: Tensor
) -> list[str]:
    close = [
        (float(cosine), f'"{classes[i]}" and "{classes[j]}" ({cosine:.2f})')
        for (i, j), cosine in zip(pairs, between, strict=True)
        if cosine > NEARLY_ONE and texts[i] != texts[j]
    ]
    if not close:
        return []
    worst = [words for _, words in sorted(close, key=lambda pair: -pair[0])]
    return [f"Nearly one concept to the language model, so word them further apart: {_named(worst)}."]


def _strays(classes: Sequence[str], embeddings: Tensor) -> list[str]:
    counts = strays(embeddings)
    per_class = embeddings.shape[1]
    found = [
        (
            int(row.sum()),
            f'"{name}" ({int(row.sum())} of {per_class} prompts, towards "{classes[int(row.argmax())]}")',
        )
        for name, row in zip(classes, counts, strict=True)
        if row.any()
    ]
    if not found:
        return []
    worst = [words for _, words in sorted(found, key=lambda pair: -pair[0])]
    return [f"Wording moves a prompt further than the step to another class for {_named(worst)}."]


def _named(items: Sequence[str]) -> str:
    more = len(items) - NAMED
    return ", ".join(items[:NAMED]) + (f" and {more} more" if more > 0 else "")
