"""Distribution of the prompt embeddings of each class.

    μ_k = mean_m E_km        Σ_k = Σ_m (E_km − μ_k)(E_km − μ_k)ᵀ / (M − 1)        ‖E_km‖₂ = 1

Only the M embeddings of each class are stored and sent. μ, diag Σ and samples of N(μ, Σ + 1e-4 I) follow from them
exactly, without a D × D matrix.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbm.data.catalog.entries import describe_wordless
from fedbm.errors import FedBMError, shorten_list
from fedbm.language.encoders.encode import encode
from fedbm.language.prompts import make_prompts
from fedbm.utils.io import atomic_write

FORMAT = 1
MAX_COSINE = 0.95  # a classifier can hardly separate class means with a higher cosine
MAX_NAMED = 5  # pairs named in one sentence; the rest are counted
JITTER = 0.01  # standard deviation of the isotropic part of a sample, so Σ + 1e-4 I


def sample_concepts(embeddings: Tensor, labels: Tensor, eps_prompts: Tensor, eps_dim: Tensor) -> Tensor:
    """Sample z = μ_y + (E_y − μ_y)ᵀ ε_M / √(M−1) + 0.01 ε_D from N(μ_y, Σ_y + 1e-4 I) for each label y.

    The operations depend only on shapes, so they fit into a CUDA graph.

    Args:
        embeddings: unit embeddings of the prompts of each class, [K,M,D].
        labels: classes to sample, [B].
        eps_prompts: standard normal noise ε_M, [B,M].
        eps_dim: standard normal noise ε_D, [B,D].

    Returns:
        Samples z, [B,D].

    Example:
        >>> import fedbm, torch
        >>> concepts = fedbm.load_bundled("ham10000")
        >>> fedbm.sample_concepts(concepts.embeddings, torch.tensor([4]), torch.randn(1, 24), torch.randn(1, 384)).shape
        torch.Size([1, 384])
    """
    chosen = embeddings[labels]
    mean = chosen.mean(dim=1, keepdim=True)
    scaled = eps_prompts.unsqueeze(1) / math.sqrt(embeddings.shape[1] - 1)
    return (mean + torch.bmm(scaled, chosen - mean)).squeeze(1) + JITTER * eps_dim


@dataclass(frozen=True, eq=False)
class ConceptDistribution:
    """Embeddings of the concepts of all classes. Create it with fit(), load() or build_concepts().

    Attributes:
        classes: class names in label order.
        texts: the concept text of each class.
        embeddings: unit embeddings of the prompts of each class, [K,M,D], float32.
        provenance: encoder, prompts and versions that produced the embeddings.

    Example:
        >>> import fedbm
        >>> concepts = fedbm.load_bundled("ham10000")
        >>> concepts.texts[4], concepts.mean.shape
        ('melanoma', torch.Size([7, 384]))
    """

    classes: tuple[str, ...]
    texts: tuple[str, ...]
    embeddings: Tensor
    provenance: Mapping[str, Any]

    @classmethod
    def fit(
        cls, classes: Sequence[str], texts: Sequence[str], embeddings: Tensor, provenance: Mapping[str, Any]
    ) -> ConceptDistribution:
        """Check and normalise the embeddings. Unit rows stay unchanged, so that a saved file loads bit for bit.

        Raises:
            FedBMError: if shapes disagree, names repeat, or embeddings are zero or not finite.
        """
        shape, names = list(embeddings.shape), list(classes)
        if len(shape) != 3 or min(shape[:2]) < 2 or not len(names) == len(texts) == shape[0]:
            raise FedBMError(
                "embeddings must have the shape [classes, prompts, D], with at least 2 classes and 2 prompts, not "
                f"{shape} (classes: {len(names)}, texts: {len(texts)})"
            )
        if repeated := [name for name in names if names.count(name) > 1]:
            raise FedBMError(f'the class "{repeated[0]}" occurs twice; class names must differ')
        exact = embeddings.detach().to("cpu", torch.float64)
        length = exact.norm(dim=2, keepdim=True)
        if not bool(exact.isfinite().all()) or not bool((length > 0).all()):
            raise FedBMError("some embeddings are zero, infinite or not a number; encode the prompts again")
        unit = torch.where((length - 1).abs() < 1e-6, exact, normalize(exact, dim=2)).float().contiguous()
        return cls(tuple(classes), tuple(texts), unit, dict(provenance))

    @cached_property
    def mean(self) -> Tensor:
        """Means μ, [K,D]."""
        return self.embeddings.mean(dim=1)

    @cached_property
    def variance(self) -> Tensor:
        """Unbiased variances diag Σ, [K,D]."""
        return self.embeddings.var(dim=1, unbiased=True)

    def sample(self, labels: Tensor, eps_prompts: Tensor, eps_dim: Tensor) -> Tensor:
        """Sample embeddings of *labels*; see sample_concepts()."""
        return sample_concepts(self.embeddings, labels, eps_prompts, eps_dim)

    def similarity(self) -> Tensor:
        """Return the cosines between class means, [K,K]."""
        unit = normalize(self.mean, dim=1)
        return unit @ unit.T

    def describe_separability(self) -> list[str]:
        """Return the range of cosines, then a sentence for each kind of problem, or one that says there is none."""
        classes, cosines = self.classes, self.similarity()
        pairs = sorted(((float(cosines[i, j]), i, j) for i, j in combinations(range(len(classes)), 2)), reverse=True)
        values = [cosine for cosine, _, _ in pairs]
        problems = []
        if similar := [f'"{classes[i]}" and "{classes[j]}" ({c:.2f})' for c, i, j in pairs if c > MAX_COSINE]:
            problems.append(
                f"The language model hardly distinguishes {shorten_list(similar, MAX_NAMED)}; use texts that differ "
                "more."
            )
        problems += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in describe_wordless(classes, self.texts)]
        return [
            f"The cosines between the means of the {len(classes)} concepts are {values[-1]:.2f} to {values[0]:.2f}, "
            f"{sum(values) / len(values):.2f} on average.",
            *(problems or ["All concepts are well separated: no two are nearly equal."]),
        ]

    def keep_prompts(self, indices: Sequence[int]) -> ConceptDistribution:
        """Return the same classes with only these prompts."""
        kept = dict(self.provenance)
        if "prompts" in kept:
            kept["prompts"] = [kept["prompts"][index] for index in indices]
        return self.fit(self.classes, self.texts, self.embeddings[:, list(indices)], kept)

    def select(self, classes: Sequence[str]) -> ConceptDistribution:
        """Return only these classes, in this order."""
        if unknown := [name for name in classes if name not in self.classes]:
            known = f"only for {shorten_list(self.classes, 5)}: make a concept file for these classes"
            raise FedBMError(f'there is no concept for the class "{unknown[0]}", {known}')
        rows = [self.classes.index(name) for name in classes]
        return self.fit(classes, [self.texts[row] for row in rows], self.embeddings[rows], self.provenance)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of classes, texts and float32 embeddings. Sites with the same concepts have the same checksum."""
        head = json.dumps([self.classes, self.texts, list(self.embeddings.shape)], ensure_ascii=False)
        body = self.embeddings.contiguous().numpy().astype("<f4", copy=False).tobytes()
        return hashlib.sha256(head.encode() + b"\n" + body).hexdigest()

    def save(self, path: Path, *, half: bool = False) -> None:
        """Write a safetensors file with a JSON header. *half* stores 16 bits, which keeps cosines to 1e-3."""
        from safetensors.torch import save

        names = {"classes": self.classes, "texts": self.texts}
        header = {"format": FORMAT, **names, "provenance": dict(self.provenance)}
        stored = self.embeddings.half() if half else self.embeddings
        content = save({"embeddings": stored}, {"concepts": json.dumps(header, ensure_ascii=False)})
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)  # safetensors' own writer sets permissions that other users cannot read

    @classmethod
    def load(cls, path: Path) -> ConceptDistribution:
        """Read a file written by save().

        Raises:
            FedBMError: if the file is missing, damaged or of another format.
        """
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise FedBMError(f"the concept file {path} does not exist")
        try:
            with safe_open(path, framework="pt") as archive:
                header = json.loads(archive.metadata()["concepts"])
                embeddings = archive.get_tensor("embeddings")
            if header["format"] == FORMAT:
                return cls.fit(header["classes"], header["texts"], embeddings, header["provenance"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise FedBMError(f"{path} is not a FedBM concept file, or it is damaged") from error
        raise FedBMError(f"{path} has another format than this version of FedBM reads; build the concepts again")


def build_concepts(
    classes: Sequence[str],
    texts: Sequence[str],
    modality: str,
    encoder: str = "minilm",
    folder: Path | None = None,
    pooling: str | None = None,
) -> ConceptDistribution:
    """Build prompts for each class, encode them and fit the distribution.

    Args:
        classes: class names in label order.
        texts: the concept text of each class.
        modality: how the images were taken, such as "endoscopy".
        encoder: "minilm", "bert", "roberta", "biomedclip" or a Hugging Face id.
        folder: folder of the language model; None uses the Hugging Face cache.
        pooling: "mean", "cls" or "biomedclip"; None uses the encoder's own.

    Returns:
        The concept distribution. Its provenance contains the prompts with {c} in place of the concept.

    Raises:
        FedBMError: if a text is empty or the language model cannot be loaded.

    Example:
        >>> import fedbm
        >>> fedbm.build_concepts(["mel", "nv"], ["melanoma", "nevus"], "dermatoscopy")  # doctest: +SKIP
    """
    grid = [make_prompts(text, modality) for text in texts]
    flat, provenance = encode([prompt for row in grid for prompt in row], encoder, folder, pooling)
    frames = list(make_prompts("{c}", modality))
    made_by = {**provenance, "modality": modality, "prompts": frames}
    return ConceptDistribution.fit(classes, texts, flat.view(len(texts), len(frames), -1), made_by)
