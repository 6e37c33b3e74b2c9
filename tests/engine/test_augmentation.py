"""Augmentation of real images: by hand, from its own stream, and only where the data set allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import task
from test_local import facts, samples
from whole_runs import folder_of, play
from whole_runs import small_plan_of as plan_of

from fedbm.config.options import TrainOptions
from fedbm.engine import local_training
from fedbm.engine.augmentation import FLIP, SHIFT, TONE, augment, draw_augmentation
from fedbm.engine.checkpoint import load_tensors
from fedbm.engine.local_training import CHUNK, train_client
from fedbm.errors import FedBMError
from fedbm.methods import FedAvg
from fedbm.utils.seeds import torch_rng

PICTURE = torch.arange(16, dtype=torch.uint8).view(1, 4, 4, 1)  # 0 1 2 3 / 4 5 6 7 / …


def change(flip: tuple[bool, bool], shift: tuple[int, int], tone: tuple[float, float] = (0.0, 0.0)) -> torch.Tensor:
    draws = {FLIP: torch.tensor([flip]), SHIFT: torch.tensor([shift]), TONE: torch.tensor([tone])}
    return augment(PICTURE, draws)[0, :, :, 0]


def test_by_hand() -> None:
    assert change((False, False), (0, 0)).equal(PICTURE[0, :, :, 0].float())
    assert change((False, True), (0, 0))[0].tolist() == [3, 2, 1, 0]
    assert change((True, False), (0, 0))[:, 0].tolist() == [12, 8, 4, 0]
    assert change((False, False), (0, 1))[0].tolist() == [1, 2, 3, 2], "mirrored at the right border"
    assert change((False, False), (-2, 0))[:, 0].tolist() == [8, 4, 0, 4], "mirrored at the upper border"
    assert change((False, False), (0, 0), (0.1, -0.5))[0].tolist() == pytest.approx(
        [(x - 127.5) * 0.5 + 127.5 + 25.5 for x in range(4)]
    )
    assert change((False, False), (0, 0), (-0.2, 0.0)).max() == 0, "cut to the range of pixels"


def test_each_image_has_its_own_draws_within_the_limits() -> None:
    grey = task(size=16, hflip=True)
    draws = draw_augmentation("standard", grey, 50, 8, torch_rng(0))
    assert {name: tuple(value.shape) for name, value in draws.items()} == dict.fromkeys((FLIP, SHIFT, TONE), (50, 8, 2))
    assert draws[SHIFT].unique().tolist() == [-2, -1, 0, 1, 2]
    assert 0.09 < float(draws[TONE].abs().max()) <= 0.1
    assert not draws[FLIP][..., 0].any(), "upside down is not allowed"
    assert 0.4 < float(draws[FLIP][..., 1].float().mean()) < 0.6
    assert draw_augmentation("none", grey, 50, 8, torch_rng(0)) == {}
    assert list(draw_augmentation("flip", grey, 50, 8, torch_rng(0))) == [FLIP]


def test_local_training_reads_the_drawn_images() -> None:
    """Steps see what augment() makes of the draws of (seed, round, client, …); the order of the samples stays."""
    data, method, setting = samples(CHUNK + 3), FedAvg(), task(hflip=True)
    seen: list[torch.Tensor] = []

    class Watched(FedAvg):
        def loss(self, model: Any, batch: Any, context: Any) -> Any:
            seen.append(batch.images)
            return super().loss(model, batch, context)

    model = method.model(setting)
    train = TrainOptions(batch=1, augment="standard")
    server = method.server_init(model)
    train_client(Watched(), model, setting, train, 2, facts(data), data, server, {})
    order = torch.randperm(CHUNK + 3, generator=torch_rng(0, "client", 2, 0, 0, 0, "order"))
    for first, steps in ((0, CHUNK), (CHUNK, 3)):
        stream = torch_rng(0, "client", 2, 0, 0, 0, "augment", first)
        draws = draw_augmentation("standard", setting, steps, 1, stream)
        for step in range(steps):
            images = augment(data.images[order[first + step]][None], {name: v[step] for name, v in draws.items()})
            assert torch.equal(seen[first + step], data.normalise.pixels(images))


@pytest.mark.parametrize("method", ["fedavg", "fedbm", "fedrep", "central"])
def test_whole_runs(method: str, tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path: Path) -> None:
    """An augmented run is another run, also if processes train its clients."""
    settings = {**(tiny_fedbm if method == "fedbm" else tiny), "rounds": 2, "method": method}
    kinds = ({}, {"augment": "none"}, {"augment": "flip"}, {"augment": "standard"})
    plans = [plan_of(settings, tmp_path, **more) for more in kinds]
    assert plans[0].id == plans[1].id
    models = []
    for plan in plans[1:]:
        play(plan)
        models.append(load_tensors(folder_of(plan) / "checkpoint.safetensors")[0]["body.conv.weight"])
    assert not any(torch.equal(models[a], models[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_flips_that_are_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(FedBMError, match="augment = flip has no effect: images of this data set must not be flipped"):
        plan_of({"data": "digits", "size": 16, "method": "fedavg", "rounds": 1}, tmp_path, augment="flip")


def test_no_augmentation_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("drawn")

    monkeypatch.setattr(torch, "rand", refuse)
    chunks = list(local_training.schedule(FedAvg(), task(), TrainOptions(), 1, facts(samples())))
    assert [chunk.augmentation for chunk in chunks] == [{}] * len(chunks)
