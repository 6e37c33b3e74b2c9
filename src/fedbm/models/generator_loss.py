"""Losses of the generator in addition to the classifier's own loss (L_sem):

    L_div = (1/K) Σ_{k present twice} mean over pairs a<b of class k of  1 / (‖x_a−x_b‖₁ / ‖z_a−z_b‖₁ + 1e-5)
    L_dis = Σ over BatchNorm layers ‖m − running mean‖₂ + ‖v − running var‖₂,   m, v of that layer's input (v biased)

and the augmentation of generated images for L_sem and for the clients: flips and a random crop after padding by 4.
They are expressed as row and column indices, so that a step has no branches and fits into a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PADDING = 4
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def diversity_loss(images: Tensor, conditions: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Compute L_div, which rewards different images for different conditions of the same class.

    Args:
        images: generated images before augmentation, [B,C,H,W].
        conditions: the conditions that they were generated from, [B,D].
        labels: the class of each image, [B].
        classes: number of classes K. A class with fewer than two images adds nothing.

    Returns:
        The loss as a scalar tensor.

    Example:
        >>> images, conditions = torch.tensor([0.0, 4.0]).view(2, 1, 1, 1), torch.tensor([[0.0], [1.0]])
        >>> diversity_loss(images, conditions, torch.tensor([0, 0]), classes=1)
        tensor(0.2500)
    """
    images = images.to(conditions.dtype)  # under autocast they are bf16
    pixels = images.flatten(1)
    # Each pair occurs twice, as (a,b) and (b,a). Sending the whole gradient of a gap to its first image costs half of
    # sending it to both. 2x − x equals x to the last digit and has twice the gradient.
    image_gap = torch.cdist(2 * pixels - pixels.detach(), pixels.detach(), p=1)
    condition_gap = torch.cdist(conditions, conditions, p=1)
    pairs = (labels[:, None] == labels[None, :]) & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    # Pairs outside the mask get gaps of 1, so that neither their value nor their gradient is NaN.
    image_gap = torch.where(pairs, image_gap, 1.0)
    condition_gap = torch.where(pairs, condition_gap, 1.0).clamp_min(torch.finfo(images.dtype).tiny)
    penalty = torch.where(pairs, 1.0 / (image_gap / condition_gap + 1e-5), 0.0).sum(dim=1)
    count = pairs.sum(dim=1).to(images.dtype)
    # index_add() would add in any order on a GPU, so the last bit of the loss, but not of its gradient, would vary
    member = nn.functional.one_hot(labels, classes).to(images.dtype)
    per_class = (torch.stack([penalty, count])[:, :, None] * member).sum(dim=1)
    return (per_class[0] / per_class[1].clamp_min(1.0)).sum() / classes


class BatchNormGap:
    """Measures L_dis, the distance of batch statistics to a model's BatchNorm statistics.

    Example:
        >>> layer = nn.BatchNorm2d(1).eval()
        >>> with BatchNormGap.of(layer) as gap:
        ...     _ = layer(torch.ones(2, 1, 4, 4))
        >>> gap.loss()  # mean 1 instead of 0, variance 0 instead of 1
        tensor(2.)
    """

    def __init__(self) -> None:
        self.gaps: list[Tensor] = []

    @classmethod
    @contextmanager
    def of(cls, model: nn.Module) -> Iterator[BatchNormGap]:
        """Measure every forward pass of *model* inside the `with` block."""
        gap = cls()
        hooks = [layer.register_forward_pre_hook(gap._measure) for layer in batch_norms(model)]
        try:
            yield gap
        finally:
            for hook in hooks:
                hook.remove()

    def _measure(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, BATCH_NORMS)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        # Under autocast the input is bf16, but its statistics must not be.
        values = inputs[0].to(layer.running_mean.dtype)
        variance, mean = torch.var_mean(values, dim=(0, *range(2, values.ndim)), correction=0)
        self.gaps.append((mean - layer.running_mean).norm() + (variance - layer.running_var).norm())

    def loss(self) -> Tensor:
        """Return the sum over all measured layers."""
        return torch.stack(self.gaps).sum()


def batch_norms(model: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    """Return the model's BatchNorm layers that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, BATCH_NORMS) and m.track_running_stats]


def draw_crops(size: int, hflip: bool, vflip: bool, steps: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw row and column indices [steps,s] into an image padded by 4: one random crop and flip per step."""
    start = torch.randint(0, 2 * PADDING + 1, (2, steps, 1), generator=rng)
    flipped = torch.rand(2, steps, 1, generator=rng) < 0.5
    forward = torch.arange(size)
    allowed = torch.tensor([vflip, hflip])[:, None, None]
    rows, columns = start + torch.where(flipped & allowed, forward.flip(0), forward)
    return rows, columns


def crop(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pad the images by 4 with zeros, then select *rows* and *columns*."""
    padded = nn.functional.pad(images, (PADDING,) * 4)
    return padded.index_select(2, rows).index_select(3, columns)
