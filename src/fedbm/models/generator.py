"""The conditional generator of CGDE: condition z [B,D] → image in [0,1], [B,C,s,s].

A linear layer maps D to w channels at size s/2^u, where u ≤ 4 is the largest with s divisible by 2^u. Then follow
u+1 blocks of conv–BatchNorm–LeakyReLU(0.2), each after the first with nearest-neighbour upsampling by 2, the last two
with w/2 channels; then a convolution and a sigmoid. At 128 px, w = 128: blocks of 128, 128, 128, 64, 64 channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedbm.errors import FedBMError
from fedbm.models.conv_ops import UpsampleConv2d


class Generator(nn.Module):
    """Conditional image generator.

    Args:
        condition_dim: length D of a condition.
        channels: 1 for grey images, 3 for colour.
        size: height and width of the images, a multiple of 4 and at least 16.
        width: channels of the first blocks.

    Raises:
        FedBMError: if *size* is not supported.

    Example:

    >>> Generator(condition_dim=8, channels=1, size=28, width=16)(torch.zeros(2, 8)).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, condition_dim: int, channels: int, size: int, width: int = 128) -> None:
        super().__init__()
        if size < 16 or size % 4:
            raise FedBMError(f"the generator does not support image size {size}; use a multiple of 4 from 16 up")
        upsamplings = next(u for u in (4, 3, 2) if size % 2**u == 0)
        self.width, self.seed_size = width, size >> upsamplings
        self.expand = nn.Linear(condition_dim, width * self.seed_size**2)
        widths = [width] * (upsamplings - 1) + [width // 2] * 2
        layers: list[nn.Module] = []
        for in_channels, out_channels in zip([width, *widths], widths, strict=False):
            layers += [
                UpsampleConv2d(in_channels, out_channels)
                if layers
                else nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(out_channels),  # would cancel a bias of the convolution
                nn.LeakyReLU(0.2, inplace=True),
            ]
        self.blocks = nn.Sequential(*layers)
        self.paint = nn.Conv2d(widths[-1], channels, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.expand(z).view(-1, self.width, self.seed_size, self.seed_size)
        return torch.sigmoid(self.paint(self.blocks(x)))
