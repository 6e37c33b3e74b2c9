"""The concept head (LKCC): a frozen classifier with one Gaussian N(μ_k, diag σ²_k) per class.

    h        = x / ‖x‖₂
    logit_k  = τ h·μ_k + ½ τ² h²·σ²_k                       (h² element-wise)
    loss     = logsumexp_k(logit_k) − τ h·μ_y
             = cross-entropy(logit, y) + ½ τ² h²·σ²_y

The loss is an upper bound of the expected contrastive loss over embeddings drawn from these Gaussians.
With σ² = 0 it is plain cross-entropy on τ h·μ_k: the "embedding mean" classifier.

Differs from the paper as printed: the factor τ of Eq. 4 and 5 follows the derivation in the appendix.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.errors import FedBMError


def concept_logits(h: Tensor, mean: Tensor, variance: Tensor, temperature: float) -> Tensor:
    """Compute τ h·μ_k + ½ τ² h²·σ²_k.

    Args:
        h: features of unit length, [B,D].
        mean: class means μ, [K,D].
        variance: class variances σ², [K,D].
        temperature: τ.

    Returns:
        Logits [B,K].

    Example:
        >>> concept_logits(torch.tensor([[0.6, 0.8]]), torch.eye(2), torch.zeros(2, 2), temperature=10.0)
        tensor([[6., 8.]])
    """
    return temperature * h @ mean.T + 0.5 * temperature**2 * h.square() @ variance.T


def concept_loss(h: Tensor, labels: Tensor, mean: Tensor, variance: Tensor, temperature: float) -> dict[str, Tensor]:
    """Compute the two terms of the LKCC loss; their sum is logsumexp_k(logit_k) − τ h·μ_y.

    Args:
        h: features of unit length, [B,D].
        labels: class of each row, [B].
        mean: class means μ, [K,D].
        variance: class variances σ², [K,D].
        temperature: τ.

    Returns:
        The batch means of "cross_entropy" and "variance".

    Example:
        >>> h, y = torch.tensor([[0.6, 0.8]]), torch.tensor([1])
        >>> concept_loss(h, y, torch.eye(2), torch.zeros(2, 2), temperature=10.0)
        {'cross_entropy': tensor(0.1269), 'variance': tensor(0.)}
    """
    logits = concept_logits(h, mean, variance, temperature)
    spread = 0.5 * temperature**2 * (h.square() * variance[labels]).sum(dim=1)
    return {"cross_entropy": F.cross_entropy(logits, labels), "variance": spread.mean()}


def without_autocast(forward: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Run a head's *forward* in full precision: in bf16 the logits of two classes easily become equal."""

    @functools.wraps(forward)
    def exact(head: nn.Module, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return forward(head, features if features.dtype == torch.float64 else features.float())

    return exact


class ConceptHead(nn.Module):
    """Frozen concept classifier: features [B,D] → logits [B,K]. It has no trainable parameters.

    Args:
        mean: class means μ, [K,D].
        variance: class variances σ², [K,D].
        temperature: τ.

    Example:

    >>> head = ConceptHead(torch.eye(2, 3), torch.zeros(2, 3), temperature=2.0)
    >>> head(torch.tensor([[3.0, 0.0, 4.0]]))
    tensor([[1.2000, 0.0000]])
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, mean: Tensor, variance: Tensor, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.register_buffer("mean", mean.clone())
        self.register_buffer("variance", variance.clone())

    @without_autocast
    def forward(self, features: Tensor) -> Tensor:
        h = F.normalize(features, dim=1)
        return concept_logits(h, self.mean, self.variance, self.temperature)

    def loss(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the terms of concept_loss() for features of any length."""
        with torch.autocast(features.device.type, enabled=False):
            h = F.normalize(features.to(self.mean.dtype), dim=1)
            return concept_loss(h, labels, self.mean, self.variance, self.temperature)


class CrossEntropyHead(nn.Module):
    """Base of heads trained by cross-entropy, with the same methods as ConceptHead."""

    def loss(self, features: Tensor, labels: Tensor, smoothing: float = 0.0) -> dict[str, Tensor]:
        return {"cross_entropy": F.cross_entropy(self(features), labels, label_smoothing=smoothing)}


class LinearHead(CrossEntropyHead, nn.Linear):
    """The usual trained classifier W x + b."""

    @without_autocast
    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


class Classifier(nn.Module):
    """The model of every method: head(project(body(x))). Names in its state start with the part's name."""

    def __init__(self, body: nn.Module, head: ConceptHead | CrossEntropyHead, project: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        if project is not None:
            self.project = project
        self.head = head

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.body(images)
        return self.project(features) if hasattr(self, "project") else features

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    def loss(self, images: Tensor, labels: Tensor, smoothing: float = 0.0) -> dict[str, Tensor]:
        """Return the head's loss terms; only heads trained by cross-entropy have *smoothing*."""
        more = {"smoothing": smoothing} if smoothing else {}
        return self.head.loss(self.features(images), labels, **more)


def feature_dim(body: nn.Module, shape: tuple[int, int, int]) -> int:
    """Return the body's `feature_dim`, or measure it with one image of zeros."""
    declared = getattr(body, "feature_dim", None)
    if isinstance(declared, int):
        return declared
    return int(probe_body(body, shape).shape[1])


def probe_body(body: nn.Module, shape: tuple[int, int, int]) -> Tensor:
    """Return the features of two images of zeros; raise FedBMError if the body does not fit the images."""
    training, images = body.training, torch.zeros(2, *shape)
    try:
        with torch.no_grad():
            features: Tensor = body.eval()(images)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        problem = str(error).partition("\n")[0]
        raise FedBMError(
            f"the body cannot read images of shape {shape} ({problem}): make it for {shape[0]} channels and this "
            "height and width"
        ) from error
    body.train(training)
    found = f"{features.dtype} {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
    length = getattr(body, "feature_dim", None)
    if not re.fullmatch(rf"{images.dtype} \[2, {length or '[0-9]+'}\]", found):
        raise FedBMError(
            f"for 2 images, the body returned {found}, but it must return features, {images.dtype} "
            f"[2, {length or 'F'}]: nn.Flatten() at its end may help"
        )
    return features
