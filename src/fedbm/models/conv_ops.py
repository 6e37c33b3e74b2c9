"""Two convolutions that compute what nn.Conv2d computes, to rounding, with less work. Weights are named as its own.

A step of training is small, so that these two, at the full size of the image, are a large part of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StemConv2d(nn.Conv2d):
    """nn.Conv2d from the few channels of an image, with a stride s.

    On a GPU and with channels last, s×s pixels are put together as one with s² times the channels, and so are the
    weights: then the stride is 1 and tensor cores, which take channels by eights, are better filled. The kernel is
    filled up with zeros to a multiple of s, the channels to one of 8.
    """

    def forward(self, x: Tensor) -> Tensor:
        fast = x.is_cuda and x.is_contiguous(memory_format=torch.channels_last)
        return self.gathered(x) if fast else super().forward(x)

    def gathered(self, x: Tensor) -> Tensor:
        (s, _), (k, _), p = self.stride, self.kernel_size, int(self.padding[0])
        filled = -(-k // s) * s
        below, right = (((n + 2 * p - k) // s) * s + filled - n - p for n in x.shape[2:])
        x = gather(F.pad(x, (p, right, p, below)), s)
        return F.conv2d(x, gather(F.pad(self.weight, (0, filled - k, 0, filled - k)), s), self.bias)


def gather(x: Tensor, s: int) -> Tensor:
    """[B,C,h,w] → [B, s²·C filled up with zeros to a multiple of 8, h/s, w/s], channels last."""
    batch, channels, height, width = x.shape
    blocks = x.permute(0, 2, 3, 1).reshape(batch, height // s, s, width // s, s, channels).transpose(2, 3)
    blocks = blocks.reshape(batch, height // s, width // s, s * s * channels)
    return F.pad(blocks, (0, -s * s * channels % 8)).permute(0, 3, 1, 2)


class DoubledConv2d(nn.Conv2d):
    """A 3×3 convolution of an image doubled in size by repeating every pixel: [B,C,h,w] → [B,O,2h,2w].

    In the doubled image a pixel's nine neighbours are copies of four pixels; of which, depends on whether its row and
    its column are even. So four kernels of 2×2 on the small image do, sums of the 3×3 one: 4/9 of the products, and
    the doubled image is never made.
    """

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(inside, outside, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        kernels = by_parity(by_parity(self.weight, 2), 4)  # [column's, row's parity, O, C, 2, 2]
        made = F.conv2d(x, kernels.flatten(0, 2), padding=1)  # [B, 4·O, h+1, w+1]
        made = made.permute(0, 2, 3, 1).reshape(batch, height + 1, width + 1, 2, 2, self.out_channels)
        rows = [
            torch.stack([made[:, r : r + height, c : c + width, c, r] for c in (0, 1)], dim=3)  # [B,h,w,2,O]
            for r in (0, 1)
        ]
        doubled = torch.stack(rows, dim=2)  # [B,h,2,w,2,O]
        return doubled.reshape(batch, 2 * height, 2 * width, self.out_channels).permute(0, 3, 1, 2)


def by_parity(weight: Tensor, dim: int) -> Tensor:
    """Kernels of three along *dim* → [2, …] of two: what an even and an odd pixel of the doubled image see."""
    before, at, after = weight.unbind(dim)
    even, odd = torch.stack([before, at + after], dim), torch.stack([before + at, after], dim)
    return torch.stack([even, odd])
