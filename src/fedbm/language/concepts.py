"""A class in language space: the distribution of its prompts' embeddings.

    μ_k = mean_m E_km        Σ_k = Σ_m (E_km − μ_k)(E_km − μ_k)ᵀ / (M − 1)        ‖E_km‖₂ = 1

The M embeddings of each class are what is kept and sent: from them μ, diag Σ and draws from N(μ, Σ + 1e-4 I)
follow exactly, and no D × D matrix is ever needed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbm.errors import FedBMError
from fedbm.language.encoders.encode import encode
from fedbm.language.prompts import prompts
from fedbm.language.separability import cosines, diagnose
from fedbm.utils.io import atomic_write

FORMAT = 1
JITTER = 0.01  # standard deviation of the isotropic part of a sample, so Σ + 1e-4 I


def sample_concepts(embeddings: Tensor, labels: Tensor, eps_prompts: Tensor, eps_dim: Tensor) -> Tensor:
    """z = μ_y + (E_y − μ_y)ᵀ ε_M / √(M−1) + 0.01 ε_D, a draw from N(μ_y, Σ_y + 1e-4 I) for each label.

    embeddings [K,M,D], labels [B], standard normal eps_prompts [B,M] and eps_dim [B,D] → z [B,D].
    Shapes alone decide what is run, so a CUDA graph can hold it.
    """
    chosen = embeddings[labels]
    mean = chosen.mean(dim=1, keepdim=True)
    scaled = eps_prompts.unsqueeze(1) / math.sqrt(embeddings.shape[1] - 1)
    return (mean + torch.bmm(scaled, chosen - mean)).squeeze(1) + JITTER * eps_dim


@dataclass(frozen=True, eq=False)
class ConceptDistribution:
    """Made by fit, build or load, which check it; *texts* holds the concept of each class."""

    classes: tuple[str, ...]
    texts: tuple[str, ...]
    embeddings: Tensor  # [K, M, D], float32, unit length
    provenance: Mapping[str, Any]

    @classmethod
    def fit(
        cls, classes: Sequence[str], texts: Sequence[str], embeddings: Tensor, provenance: Mapping[str, Any]
    ) -> ConceptDistribution:
        """Check and normalise. Unit rows stay as they are, so that a saved file loads bit for bit."""
        if embeddings.ndim != 3:
            raise FedBMError(f"embeddings need the shape [classes, prompts, D], not {list(embeddings.shape)}")
        count, per_class, _ = embeddings.shape
        if not len(classes) == len(texts) == count:
            raise FedBMError(f"{len(classes)} classes, {len(texts)} texts and {count} rows of embeddings differ")
        if twice := sorted({name for name in classes if list(classes).count(name) > 1}):
            raise FedBMError(f'the class "{twice[0]}" is named twice; class names must differ')
        if count < 2:
            raise FedBMError(f"concepts need at least 2 classes, but there are {count}")
        if per_class < 2:
            raise FedBMError(f"a class needs at least 2 prompts to have a spread, but there are {per_class}")
        exact = embeddings.detach().to("cpu", torch.float64)
        length = exact.norm(dim=2, keepdim=True)
        if not bool(exact.isfinite().all()) or not bool((length > 0).all()):
            raise FedBMError("some embeddings are zero, infinite or not a number; encode the prompts again")
        unit = torch.where((length - 1).abs() < 1e-6, exact, normalize(exact, dim=2)).float().contiguous()
        return cls(tuple(classes), tuple(texts), unit, dict(provenance))

    @cached_property
    def mean(self) -> Tensor:
        """μ [K,D]."""
        return self.embeddings.mean(dim=1)

    @cached_property
    def variance(self) -> Tensor:
        """diag Σ [K,D], unbiased."""
        return self.embeddings.var(dim=1, unbiased=True)

    def covariance(self, k: int) -> Tensor:
        """Σ_k [D,D], unbiased."""
        centred = self.embeddings[k] - self.mean[k]
        return centred.T @ centred / (centred.shape[0] - 1)

    def sample(self, labels: Tensor, eps_prompts: Tensor, eps_dim: Tensor) -> Tensor:
        return sample_concepts(self.embeddings, labels, eps_prompts, eps_dim)

    def similarity(self) -> Tensor:
        """[K,K], the cosines between class means."""
        return cosines(self.embeddings)

    def diagnose(self) -> list[str]:
        """In plain words: can these concepts be told apart?"""
        return diagnose(self.classes, self.texts, self.embeddings)

    def share(self, indices: Sequence[int]) -> ConceptDistribution:
        """The same classes by these prompts alone."""
        count = self.embeddings.shape[1]
        if len(set(indices)) < len(indices) or not all(0 <= index < count for index in indices):
            raise FedBMError(f"prompts are chosen by different numbers from 0 to {count - 1}, not {list(indices)}")
        kept = dict(self.provenance)
        if "prompts" in kept:
            kept["prompts"] = [kept["prompts"][index] for index in indices]
        return self.fit(self.classes, self.texts, self.embeddings[:, list(indices)], kept)

    def select(self, classes: Sequence[str]) -> ConceptDistribution:
        """These classes alone, in this order."""
        if unknown := [name for name in classes if name not in self.classes]:
            raise FedBMError(f'there is no concept for the class "{unknown[0]}"')
        rows = [self.classes.index(name) for name in classes]
        texts = [self.texts[row] for row in rows]
        return self.fit(classes, texts, self.embeddings[rows], self.provenance)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of classes, texts and float32 embeddings: equal where two sites hold the same concepts."""
        head = json.dumps([self.classes, self.texts, list(self.embeddings.shape)], ensure_ascii=False)
        body = self.embeddings.contiguous().numpy().astype("<f4", copy=False).tobytes()
        return hashlib.sha256(head.encode() + b"\n" + body).hexdigest()

    def save(self, path: Path, *, half: bool = False) -> None:
        """A safetensors file, its words in one JSON entry. *half* stores 16 bits: cosines to 1e-3."""
        from safetensors.torch import save

        words = {
            "format": FORMAT,
            "classes": self.classes,
            "texts": self.texts,
            "provenance": dict(self.provenance),
        }
        stored = self.embeddings.half() if half else self.embeddings
        content = save({"embeddings": stored}, {"concepts": json.dumps(words, ensure_ascii=False)})
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)  # safetensors' own writer would hide the file from other users

    @classmethod
    def load(cls, path: Path) -> ConceptDistribution:
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise FedBMError(f"there is no concept file {path}")
        try:
            with safe_open(path, framework="pt") as archive:
                words = json.loads(archive.metadata()["concepts"])
                embeddings = archive.get_tensor("embeddings")
            version = words["format"]
            if version == FORMAT:
                return cls.fit(words["classes"], words["texts"], embeddings, words["provenance"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise FedBMError(f"{path} is not a FedBM concept file, or it is damaged") from error
        raise FedBMError(f"{path} has concept format {version}, this FedBM reads {FORMAT}; build the concepts again")


def build(
    classes: Sequence[str],
    texts: Sequence[str],
    modality: str,
    encoder: str = "minilm",
    folder: Path | None = None,
    pooling: str | None = None,
) -> ConceptDistribution:
    """Texts → prompts → embeddings → distribution. Provenance keeps the prompts with {c} for the concept."""
    grid = [prompts(text, modality) for text in texts]
    flat, provenance = encode([prompt for row in grid for prompt in row], encoder, folder, pooling)
    frames = list(prompts("{c}", modality))
    made_by = {**provenance, "modality": modality, "prompts": frames}
    return ConceptDistribution.fit(classes, texts, flat.view(len(texts), len(frames), -1), made_by)
