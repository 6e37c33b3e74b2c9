"""The two convolutions compute what plain ones compute, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbm.models.conv_ops import DoubledConv2d, StemConv2d


def gradients(made, inputs):
    weights = torch.linspace(-1, 1, made.numel(), dtype=made.dtype, device=made.device).view_as(made)
    return torch.autograd.grad((made * weights).sum(), inputs)


def assert_same(one, other, inputs):
    assert one.shape == other.shape
    for a, b in zip((one, *gradients(one, inputs)), (other, *gradients(other, inputs)), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("height", "width", "kernel", "stride", "padding"),
    [(16, 16, 7, 2, 3), (13, 10, 7, 2, 3), (9, 12, 3, 2, 1), (17, 16, 5, 4, 2), (8, 8, 2, 2, 0), (6, 7, 3, 1, 1)],
)
def test_gathered_pixels_make_the_same_stem(channels, height, width, kernel, stride, padding):
    torch.manual_seed(0)
    stem = StemConv2d(channels, 5, kernel, stride=stride, padding=padding).double()
    images = torch.randn(2, channels, height, width, dtype=torch.float64, requires_grad=True)
    assert_same(nn.Conv2d.forward(stem, images), stem.gathered(images), (images, stem.weight, stem.bias))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_on_a_gpu_the_stem_is_that_of_the_cpu(memory_format):
    torch.manual_seed(0)
    stem = StemConv2d(3, 16, 7, stride=2, padding=3, bias=False).double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    there = stem(images)
    here = stem.to("cuda")(images.to("cuda").contiguous(memory_format=memory_format))
    assert torch.allclose(there, here.cpu(), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (1, 1), (3, 5)])
def test_the_doubled_image_need_not_be_made(height, width):
    torch.manual_seed(0)
    convolution = DoubledConv2d(4, 6).double()
    images = torch.randn(2, 4, height, width, dtype=torch.float64, requires_grad=True)
    plain = F.conv2d(F.interpolate(images, scale_factor=2), convolution.weight, padding=1)
    assert_same(plain, convolution(images), (images, convolution.weight))


def test_weights_are_named_and_shaped_as_plain_ones():
    for own, plain in (
        (StemConv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.Conv2d(3, 8, 7, bias=False)),
        (DoubledConv2d(4, 6), nn.Conv2d(4, 6, 3, bias=False)),
    ):
        assert {n: v.shape for n, v in own.state_dict().items()} == {n: v.shape for n, v in plain.state_dict().items()}
