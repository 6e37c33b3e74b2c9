"""The conditional generator of CGDE: condition z [B,D] → image in [0,1], [B,C,s,s].

Linear D → w channels at s/2^u (u: the largest up to 4 with s divisible by 2^u), then u+1 blocks of
conv–BatchNorm–LeakyReLU(0.2), each after the first on an image doubled by nearest-neighbour upsampling; the last two
blocks have w/2 channels; a last convolution and a sigmoid. At 128 px, w = 128: blocks of 128, 128, 128, 64, 64.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedbm.errors import FedBMError
from fedbm.models.conv_ops import DoubledConv2d


class Generator(nn.Module):
    """Images of any size that is a multiple of 4 from 16 up.

    >>> Generator(condition_dim=8, channels=1, size=28, width=16)(torch.zeros(2, 8)).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, condition_dim: int, channels: int, size: int, width: int = 128) -> None:
        super().__init__()
        if size < 16 or size % 4:
            raise FedBMError(f"the generator makes images whose size is a multiple of 4 from 16 up, not {size}")
        doublings = next(u for u in (4, 3, 2) if size % 2**u == 0)
        self.width, self.seed_size = width, size >> doublings
        self.expand = nn.Linear(condition_dim, width * self.seed_size**2)
        widths = [width] * (doublings - 1) + [width // 2] * 2
        layers: list[nn.Module] = []
        for inside, outside in zip([width, *widths], widths, strict=False):
            layers += [
                DoubledConv2d(inside, outside) if layers else nn.Conv2d(inside, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),  # takes a bias out again, so the convolution has none
                nn.LeakyReLU(0.2, inplace=True),
            ]
        self.blocks = nn.Sequential(*layers)
        self.paint = nn.Conv2d(widths[-1], channels, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.expand(z).view(-1, self.width, self.seed_size, self.seed_size)
        return torch.sigmoid(self.paint(self.blocks(x)))
