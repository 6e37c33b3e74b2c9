"""Grey images reach a CPU convolution with the usual strides."""

from __future__ import annotations

import torch

from fedbm.models.normalize import Normalise


def test_grey_images_have_the_usual_strides() -> None:
    """With the strides (HW, 1, W, 1) PyTorch 2.13 corrupts its memory at width 4, and a run ends in a crash."""
    normalise = Normalise((0.5,), (0.25,))
    images = torch.arange(2 * 4 * 6, dtype=torch.uint8).reshape(2, 4, 6, 1)
    found = normalise.pixels(images)
    assert found.stride() == (24, 24, 6, 1)
    assert torch.equal(found[:, 0], (images[..., 0].float() / 255 - 0.5) / 0.25)
    generated = torch.rand(2, 4, 6, 1).permute(0, 3, 1, 2)
    assert normalise(generated).stride() == (24, 24, 6, 1)
