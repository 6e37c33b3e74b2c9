"""Normalise uint8 pixels for the body: (x/255 − mean) / std per channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """Normalise pixels in [0,1]. The constants move with the model but are not part of its state."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.memory_format = torch.contiguous_format

    def forward(self, images: Tensor) -> Tensor:
        normalised = (images - self.mean) / self.std
        if normalised.is_cuda or normalised.shape[1] != 1:
            return normalised
        # Grey images can have the strides (HW, 1, W, 1), which PyTorch takes for both memory formats. Its CPU
        # convolutions (2.13) then write beyond their memory. This view has the usual strides (HW, HW, W, 1).
        return normalised.squeeze(1).unsqueeze(1)

    def pixels(self, images: Tensor) -> Tensor:
        """Convert uint8 [B,H,W,C] to normalised [B,C,H,W]."""
        return self.forward(
            images.permute(0, 3, 1, 2).to(self.mean.dtype).contiguous(memory_format=self.memory_format) / 255
        )
