"""Measure how well a language model separates the concepts, and describe the problems in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbm.data.inspection.problems import describe_wordless
from fedbm.errors import shorten_list

MAX_COSINE = 0.95  # a classifier can hardly separate class means with a higher cosine
NO_PROBLEM = "All concepts are well separated: no two are nearly equal, and every prompt is nearest to its own class."
MAX_NAMED = 5  # pairs or classes named in one sentence; the rest are counted


def cosines_between_means(embeddings: Tensor) -> Tensor:
    """Return cos(μ_i, μ_j) [K,K] from embeddings [K,M,D]."""
    unit = normalize(embeddings.mean(dim=1), dim=1)
    return unit @ unit.T


def count_misassigned(embeddings: Tensor) -> Tensor:
    """Count the prompts of class i that are nearest to the mean of class j ≠ i, [K,K].

    A prompt does not count in the mean of its own class.
    """
    count, per_class, _ = embeddings.shape
    means = embeddings.mean(dim=1)
    distance = torch.cdist(embeddings, means.expand(count, -1, -1))  # [K,M,K]
    own = torch.arange(count)
    # Without prompt m the distance to the mean of its class is larger by a factor of exactly M / (M − 1).
    distance[own, :, own] *= per_class / (per_class - 1)
    nearest = distance.argmin(dim=2)  # [K,M]
    hits = torch.nn.functional.one_hot(nearest, count).sum(dim=1)
    return hits.masked_fill(torch.eye(count, dtype=torch.bool), 0)


def describe_separability(classes: Sequence[str], texts: Sequence[str], embeddings: Tensor) -> list[str]:
    """Return the range of cosines, then one sentence for each kind of problem, or a sentence that there is none."""
    cosines = cosines_between_means(embeddings)
    pairs = list(combinations(range(len(classes)), 2))
    between = torch.stack([cosines[pair] for pair in pairs])
    problems = [
        f'"{classes[i]}" and "{classes[j]}" have the same concept text "{texts[i]}"; describe how they differ.'
        for i, j in pairs
        if texts[i] == texts[j]
    ]
    similar = [
        (float(cosine), f'"{classes[i]}" and "{classes[j]}" ({cosine:.2f})')
        for (i, j), cosine in zip(pairs, between, strict=True)
        if cosine > MAX_COSINE and texts[i] != texts[j]
    ]
    if similar:
        problems.append(f"The language model hardly distinguishes {_join_worst(similar)}; use texts that differ more.")
    misassigned = [
        (count, f'"{name}" ({count} of {embeddings.shape[1]} prompts, mostly "{classes[int(row.argmax())]}")')
        for name, row in zip(classes, count_misassigned(embeddings), strict=True)
        if (count := int(row.sum()))
    ]
    if misassigned:
        problems.append(f"Some prompts are nearer to another class than to their own: {_join_worst(misassigned)}.")
    problems += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in describe_wordless(classes, texts)]
    return [
        f"The cosines between the means of the {len(classes)} concepts are {between.min():.2f} to {between.max():.2f}, "
        f"{between.mean():.2f} on average.",
        *(problems or [NO_PROBLEM]),
    ]


def _join_worst(scored: Sequence[tuple[float, str]]) -> str:
    """Join the descriptions with the highest scores."""
    return shorten_list([text for _, text in sorted(scored, key=lambda pair: -pair[0])], MAX_NAMED)
