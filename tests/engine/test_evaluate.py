"""Outputs that are not finite: the message names the tensor that is the cause."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedbm.engine.evaluate import predict_probabilities
from fedbm.engine.local_training import Samples
from fedbm.errors import DivergenceError
from fedbm.models.normalize import Normalise


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("1.running_mean", float("nan"), "1.running_mean is not finite$"),
        ("0.weight", float("inf"), "0.weight is not finite$"),
        ("0.weight", 3e38, "a lower lr may help$"),
    ],
)
def test_the_cause_is_named(name: str, value: float, words: str) -> None:
    broken = model()
    with torch.no_grad():
        broken.state_dict()[name].fill_(value)
    positions = torch.arange(2)
    images = torch.full((2, 8, 8, 1), 255, dtype=torch.uint8)
    samples = Samples(images, positions, positions, Normalise((0.0,), (0.1,)))
    with pytest.raises(DivergenceError, match=f"^the model's outputs are not finite, so it cannot be scored; {words}"):
        predict_probabilities(broken, samples)
