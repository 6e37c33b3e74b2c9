"""Two faster convolutions with the same weights and results as nn.Conv2d, up to rounding.

They run at full image resolution, so they take a large part of a training step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StemConv2d(nn.Conv2d):
    """nn.Conv2d for the few channels of an image, with stride s.

    On a GPU with channels last, s×s pixels and weights are merged into one with s² times the channels (space to
    depth). Then the stride is 1, and tensor cores, which process multiples of 8 channels, are used better. The kernel
    is padded with zeros to a multiple of s, the channels to a multiple of 8.
    """

    def forward(self, x: Tensor) -> Tensor:
        fast = x.is_cuda and x.is_contiguous(memory_format=torch.channels_last)
        return self.forward_space_to_depth(x) if fast else super().forward(x)

    def forward_space_to_depth(self, x: Tensor) -> Tensor:
        (s, _), (k, _), p = self.stride, self.kernel_size, int(self.padding[0])
        padded = -(-k // s) * s
        below, right = (((n + 2 * p - k) // s) * s + padded - n - p for n in x.shape[2:])
        x = space_to_depth(F.pad(x, (p, right, p, below)), s)
        return F.conv2d(x, space_to_depth(F.pad(self.weight, (0, padded - k, 0, padded - k)), s), self.bias)


def space_to_depth(x: Tensor, s: int) -> Tensor:
    """Rearrange [B,C,h,w] → [B, s²·C padded with zeros to a multiple of 8, h/s, w/s], channels last."""
    batch, channels, height, width = x.shape
    blocks = x.permute(0, 2, 3, 1).reshape(batch, height // s, s, width // s, s, channels).transpose(2, 3)
    blocks = blocks.reshape(batch, height // s, width // s, s * s * channels)
    return F.pad(blocks, (0, -s * s * channels % 8)).permute(0, 3, 1, 2)


class UpsampleConv2d(nn.Conv2d):
    """Nearest-neighbour upsampling by 2 followed by a 3×3 convolution: [B,C,h,w] → [B,O,2h,2w].

    In the upsampled image the nine neighbours of a pixel are copies of only four pixels. So four 2×2 kernels on the
    small image, one for each parity of row and column, give the same result with 4/9 of the products.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        kernels = split_by_parity(split_by_parity(self.weight, 2), 4)  # [column parity, row parity, O, C, 2, 2]
        y = F.conv2d(x, kernels.flatten(0, 2), padding=1)  # [B, 4·O, h+1, w+1]
        y = y.permute(0, 2, 3, 1).reshape(batch, height + 1, width + 1, 2, 2, self.out_channels)
        rows = [
            torch.stack([y[:, r : r + height, c : c + width, c, r] for c in (0, 1)], dim=3)  # [B,h,w,2,O]
            for r in (0, 1)
        ]
        upsampled = torch.stack(rows, dim=2)  # [B,h,2,w,2,O]
        return upsampled.reshape(batch, 2 * height, 2 * width, self.out_channels).permute(0, 3, 1, 2)


def split_by_parity(weight: Tensor, dim: int) -> Tensor:
    """Turn size 3 along *dim* into [2, …] of size 2: the kernels of even and odd pixels of the upsampled image."""
    before, at, after = weight.unbind(dim)
    even, odd = torch.stack([before, at + after], dim), torch.stack([before + at, after], dim)
    return torch.stack([even, odd])
