"""Augmentation of real training images: random shifts, flips, brightness and contrast, drawn before the steps.

    shift     up to 1/8 of the side in each direction; the border is mirrored
    flip      each direction with probability ½, if the data set allows it (hflip, vflip in the catalogue)
    tone      x ← c (x − ½) + ½ + b, cut to [0,1]; b and c − 1 uniform within ±0.2 for colour and ±0.1 for grey images

Every image has its own draws. They are tensors, so a step has no branches and fits into a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbm.errors import FedBMError
from fedbm.methods.base import State, Task

PREFIX = "augment."  # of the names of the draws
SHIFT, FLIP, TONE = PREFIX + "shift", PREFIX + "flip", PREFIX + "tone"
MAX_TONE, MAX_TONE_GREY = 0.2, 0.1  # grey values of X-ray and CT are calibrated, those of cameras are not


def check_augment(kind: str, hflip: bool, vflip: bool) -> None:
    """Raise FedBMError if *kind* would change nothing."""
    if kind == "flip" and not (hflip or vflip):
        raise FedBMError("augment = flip has no effect: images of this data set must not be flipped. Use standard.")


def draw_augmentation(kind: str, task: Task, steps: int, batch: int, rng: torch.Generator) -> State:
    """Draw how the images of *steps* batches are changed: [steps, B, 2] for rows and columns, or for b and c."""
    if kind == "none":
        return {}
    allowed = torch.tensor([task.vflip, task.hflip])
    draws = {FLIP: (torch.rand(steps, batch, 2, generator=rng) < 0.5) & allowed}
    if kind == "standard":
        channels, side, _ = task.shape
        reach, most = side // 8, MAX_TONE if channels == 3 else MAX_TONE_GREY
        draws[SHIFT] = torch.randint(-reach, reach + 1, (steps, batch, 2), generator=rng)
        draws[TONE] = most * (2 * torch.rand(steps, batch, 2, generator=rng) - 1)
    return draws


def augment(images: Tensor, draws: State) -> Tensor:
    """Return uint8 images [B,H,W,C] as one step's *draws* change them; real numbers from 0 to 255 after a tone."""
    if FLIP not in draws:
        return images
    shifts = draws[SHIFT].unbind(1) if SHIFT in draws else (0, 0)
    rows, columns = map(_positions, images.shape[1:3], shifts, draws[FLIP].unbind(1))
    number = torch.arange(len(images), device=images.device)
    images = images[number[:, None, None], rows[:, :, None], columns[:, None, :]]
    if TONE not in draws:
        return images
    brightness, contrast = draws[TONE][:, :, None, None, None].unbind(1)
    return ((images - 127.5) * (1 + contrast) + 127.5 + 255 * brightness).clamp(0, 255)


def _positions(side: int, shift: Tensor | int, flip: Tensor) -> Tensor:
    """Return the source [B, side] of each row or column. Positions beyond the border are mirrored at it."""
    forward = torch.arange(side, device=flip.device)
    source = torch.where(flip[:, None], forward.flip(0), forward)
    shifted = source + (shift if isinstance(shift, int) else shift[:, None])
    return (side - 1) - ((side - 1) - shifted.abs()).abs()
