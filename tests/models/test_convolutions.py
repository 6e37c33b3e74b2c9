"""The optimised convolutions compute the same as nn.Conv2d, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbm.models.conv_ops import StemConv2d, UpsampleConv2d


def gradients(output, inputs):
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device).view_as(output)
    return torch.autograd.grad((output * weights).sum(), inputs)


def assert_same(one, other, inputs):
    assert one.shape == other.shape
    for a, b in zip((one, *gradients(one, inputs)), (other, *gradients(other, inputs)), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("height", "width", "kernel", "stride", "padding"),
    [(16, 16, 7, 2, 3), (13, 10, 7, 2, 3), (9, 12, 3, 2, 1), (17, 16, 5, 4, 2), (8, 8, 2, 2, 0), (6, 7, 3, 1, 1)],
)
def test_space_to_depth_gives_the_same_stem(channels, height, width, kernel, stride, padding):
    torch.manual_seed(0)
    stem = StemConv2d(channels, 5, kernel, stride=stride, padding=padding).double()
    images = torch.randn(2, channels, height, width, dtype=torch.float64, requires_grad=True)
    assert_same(nn.Conv2d.forward(stem, images), stem.forward_space_to_depth(images), (images, stem.weight, stem.bias))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_stem_is_the_same_on_gpu_and_cpu(memory_format):
    torch.manual_seed(0)
    stem = StemConv2d(3, 16, 7, stride=2, padding=3, bias=False).double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    on_cpu = stem(images)
    on_gpu = stem.to("cuda")(images.to("cuda").contiguous(memory_format=memory_format))
    assert torch.allclose(on_cpu, on_gpu.cpu(), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (1, 1), (3, 5)])
def test_upsampling_convolution_equals_upsampling_then_convolving(height, width):
    torch.manual_seed(0)
    convolution = UpsampleConv2d(4, 6).double()
    images = torch.randn(2, 4, height, width, dtype=torch.float64, requires_grad=True)
    plain = F.conv2d(F.interpolate(images, scale_factor=2), convolution.weight, padding=1)
    assert_same(plain, convolution(images), (images, convolution.weight))


def test_weights_have_the_names_and_shapes_of_conv2d():
    for own, plain in (
        (StemConv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.Conv2d(3, 8, 7, bias=False)),
        (UpsampleConv2d(4, 6), nn.Conv2d(4, 6, 3, bias=False)),
    ):
        assert {n: v.shape for n, v in own.state_dict().items()} == {n: v.shape for n, v in plain.state_dict().items()}
