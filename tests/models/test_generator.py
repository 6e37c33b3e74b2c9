"""Shapes of the generator, and L_div, L_dis and the augmentation compared with results computed by hand."""

import pytest
import torch
from torch import nn

from fedbm.errors import FedBMError
from fedbm.models.generator import Generator
from fedbm.models.generator_loss import BatchNormGap, batch_norms, crop, diversity_loss, draw_crops


@pytest.mark.parametrize("size", [16, 20, 24, 28, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
def test_sizes_are_multiples_of_four_from_sixteen_up(size, channels):
    images = Generator(8, channels, size, width=4)(torch.randn(2, 8)).detach()
    assert images.shape == (2, channels, size, size)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1


def test_widths_at_128_pixels_match_the_paper():
    generator = Generator(512, 3, 128)
    assert [m.out_channels for m in generator.blocks if isinstance(m, nn.Conv2d)] == [128, 128, 128, 64, 64]
    assert sum(p.numel() for p in generator.parameters()) == 4_758_211


@pytest.mark.parametrize("size", [12, 18, 30, 0])
def test_other_sizes_are_refused(size):
    with pytest.raises(FedBMError, match="multiple of 4 from 16 up"):
        Generator(8, 1, size)


def test_diversity_by_hand():
    """Class 0 has the pairs (a,b), (a,c), (b,c), class 1 one image, class 2 the pair (e,f); K = 4."""
    images = torch.tensor([0.0, 1.0, 3.0, 9.0, 0.0, 4.0], dtype=torch.float64).view(6, 1, 1, 1).repeat(1, 1, 1, 2)
    conditions = torch.tensor([[0.0], [1.0], [2.0], [5.0], [0.0], [2.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    # ‖x‖₁ counts both pixels: gaps 2, 6, 4; conditions 1, 2, 1; ratios 2, 3, 4 → mean of 1/2, 1/3, 1/4; class 2: 8/2
    class_0 = sum(1 / (ratio + 1e-5) for ratio in (2.0, 3.0, 4.0)) / 3
    class_2 = 1 / (4.0 + 1e-5)
    found = diversity_loss(images, conditions, labels, classes=4)
    assert found.item() == pytest.approx((class_0 + class_2) / 4, rel=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_diversity_is_the_same_bits_on_a_busy_gpu():
    """A sum by atomic additions has the order in which blocks happen to run."""
    rng = torch.Generator().manual_seed(0)
    images, conditions = torch.rand(64, 1, 16, 16, generator=rng).cuda(), torch.randn(64, 384, generator=rng).cuda()
    labels, noise = torch.randint(0, 10, (64,), generator=rng).cuda(), torch.rand(2048, 2048).cuda()
    busy, found = torch.cuda.Stream(), set()
    for _ in range(200):
        with torch.cuda.stream(busy):
            torch.mm(noise, noise)
        value = images.clone().requires_grad_()
        loss = diversity_loss(value, conditions, labels, classes=10)
        loss.backward()
        found.add((float(loss), value.grad.cpu().numpy().tobytes()))
    assert len(found) == 1


def test_diversity_without_a_pair_is_zero_and_has_a_gradient():
    images = torch.rand(2, 1, 2, 2, requires_grad=True)
    loss = diversity_loss(images, torch.rand(2, 3), torch.tensor([0, 1]), classes=2)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(images.grad, torch.zeros_like(images))


def test_diversity_of_equal_images_is_large_but_finite():
    images = torch.full((2, 1, 2, 2), 0.5, requires_grad=True)
    loss = diversity_loss(images, torch.tensor([[0.0], [1.0]]), torch.tensor([0, 0]), classes=1)
    loss.backward()
    assert loss.item() == pytest.approx(1e5, rel=1e-6)
    assert bool(images.grad.isfinite().all())


def test_diversity_gradient():
    rng = torch.Generator().manual_seed(1)
    images = torch.rand(5, 1, 2, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    conditions = torch.rand(5, 3, generator=rng, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 1])
    assert torch.autograd.gradcheck(lambda x: diversity_loss(x, conditions, labels, 3), images)


def test_batch_norm_gap_by_hand():
    """Input values 1 and 3 in channel 0, 2 and 2 in channel 1: means (2, 2), biased variances (1, 0)."""
    layer = nn.BatchNorm2d(2).double().eval()
    layer.running_mean.copy_(torch.tensor([2.0, 6.0]))  # ‖(0, −4)‖ = 4
    layer.running_var.copy_(torch.tensor([4.0, 4.0]))  # ‖(−3, −4)‖ = 5
    images = torch.tensor([[[[1.0]], [[2.0]]], [[[3.0]], [[2.0]]]], dtype=torch.float64, requires_grad=True)
    with BatchNormGap.of(layer) as gap:
        layer(images)
    assert gap.loss().item() == pytest.approx(9.0, abs=1e-12)
    layer(images)
    assert len(gap.gaps) == 1, "hooks are removed afterwards"
    gap.loss().backward()
    assert bool(images.grad.isfinite().all())


def test_batch_norm_1d_is_measured_too():
    """A body may end in BatchNorm1d: values 1 and 3 against mean 5 and variance 4 are 3 + 3 away."""
    body = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1)).double().eval()
    body[1].running_mean.fill_(5.0)
    body[1].running_var.fill_(4.0)
    with BatchNormGap.of(body) as gap:
        body(torch.tensor([1.0, 3.0], dtype=torch.float64).view(2, 1, 1, 1))
    assert gap.loss().item() == pytest.approx(6.0, abs=1e-12)


def test_group_norm_has_no_statistics_to_match():
    assert batch_norms(nn.Sequential(nn.GroupNorm(2, 4), nn.BatchNorm2d(4, track_running_stats=False))) == []


def test_crop_by_hand():
    """Rows 4… and columns 4… of the padded image are the image; 0… moves it by four; reversed flips it."""
    image = torch.arange(16.0).view(1, 1, 4, 4)
    same, start = torch.arange(4, 8), torch.arange(0, 4)
    assert torch.equal(crop(image, same, same), image)
    assert torch.equal(crop(image, start, same), torch.zeros_like(image))
    assert torch.equal(crop(image, same.flip(0), same), image.flip(2))
    assert torch.equal(crop(image, same, same.flip(0)), image.flip(3))


def test_crops_are_drawn_once_per_step_and_flip_only_if_allowed():
    rng = torch.Generator().manual_seed(0)
    rows, columns = draw_crops(16, hflip=True, vflip=False, steps=200, rng=rng)
    assert rows.shape == columns.shape == (200, 16)
    assert 0 <= int(rows.min()) <= int(rows.max()) == 23
    forwards = columns[:, 1] > columns[:, 0]
    assert bool((rows[:, 1] > rows[:, 0]).all()), "no vertical flips"
    assert 60 < int(forwards.sum()) < 140, "about half are flipped horizontally"
    assert set((rows[:, 0]).tolist()) == set(range(9)), "every offset occurs"
