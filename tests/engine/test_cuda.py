"""On a CUDA device every method computes what it computes on the CPU, to rounding."""

import dataclasses

import pytest
import torch
from small import image_data, play, task

from fedbm.config.options import TrainOptions
from fedbm.methods import METHODS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.fixture(autouse=True)
def exact():
    """TF32 would differ from the CPU in the third digit."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", METHODS)
def test_cuda_is_the_cpu_to_rounding(name, optimizer):
    few = {
        "fedbm": {"generator_steps": 3, "generator_width": 4, "generator_every": 1},
        "fedgen": {"feature_steps": 3},
        "ccvr": {"calibration_steps": 3},
    }
    method = METHODS[name](**few.get(name, {}))
    train = TrainOptions(batch=4, optimizer=optimizer, lr=0.001, keep_optimizer=True)
    servers = []
    for device in ("cpu", "cuda"):
        data = [
            dataclasses.replace(
                own,
                images=own.images.to(device),
                labels=own.labels.to(device),
                indices=own.indices.to(device),
                normalise=own.normalise.to(device),
            )
            for own in image_data(2, size=24)
        ]
        setting = task(size=24)
        servers.append(play(method, setting, train, data, rounds=3, model=method.model(setting).to(device))[0])
    for part, value in servers[0].items():
        assert torch.allclose(value.double(), servers[1][part].cpu().double(), rtol=1e-3, atol=2e-4), part
