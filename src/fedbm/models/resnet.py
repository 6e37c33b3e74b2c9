"""ResNet-18 as a feature extractor: images [B,C,H,W] → features [B, 8·width].

Parameter names are torchvision's (conv1, bn1, layer1.0.conv1, …, without fc), so its weights load unchanged.
Additional options: a 3×3 stem without pooling for small images, width, and GroupNorm under the same names.

Reference: He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbm.models.conv_ops import StemConv2d


class ResNet18(nn.Module):
    """ResNet-18 without the classifier: four stages of two basic blocks and global average pooling.

    Args:
        channels: channels of the input images.
        width: channels of the first stage; the features have `feature_dim` = 8 · width.
        stem: "7x7" with pooling, or "3x3" without pooling for small images.
        norm: "batch" or "group".

    Example:
        >>> import torch
        >>> ResNet18(channels=1, width=8)(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 64])
    """

    def __init__(
        self,
        channels: int = 3,
        width: int = 64,
        stem: Literal["7x7", "3x3"] = "7x7",
        norm: Literal["batch", "group"] = "batch",
    ) -> None:
        super().__init__()
        self.feature_dim = 8 * width
        if stem == "7x7":
            self.conv1: nn.Conv2d = StemConv2d(channels, width, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = _norm(norm, width)
        self.layer1 = _stage(width, width, 1, norm)
        self.layer2 = _stage(width, 2 * width, 2, norm)
        self.layer3 = _stage(2 * width, 4 * width, 2, norm)
        self.layer4 = _stage(4 * width, 8 * width, 2, norm)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean(dim=(2, 3))


class BasicBlock(nn.Module):
    """x → relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Literal["batch", "group"]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = _norm(norm, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = _norm(norm, out_channels)
        self.downsample = (
            nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), _norm(norm, out_channels))
            if stride != 1 or in_channels != out_channels
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        # Of one pixel, both strides give the same pixel. For stride 2 in bf16, PyTorch 2.13 on a CPU fills a part of
        # the weight's gradient with unset memory.
        stride = 1 if x.dtype == torch.bfloat16 and x.is_cpu and x.shape[2:] == (1, 1) else self.conv1.stride
        x = F.relu(self.bn1(F.conv2d(x, self.conv1.weight, None, stride, 1)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)).add_(shortcut), inplace=True)


def _stage(in_channels: int, out_channels: int, stride: int, norm: Literal["batch", "group"]) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(in_channels, out_channels, stride, norm), BasicBlock(out_channels, out_channels, 1, norm)
    )


def _norm(norm: Literal["batch", "group"], channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    groups = math.gcd(32, channels // 2) if channels % 2 == 0 else 1  # at least two channels per group
    return nn.GroupNorm(groups, channels)
