"""Feature shift: every client's images are changed by an amount of its own, those of held-out clients as well."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pictures import make_dataset

from fedbm.data.feature_shift import change, shift_features, shift_images
from fedbm.data.partition import Partition, hold_out, parse_partition
from fedbm.data.partitioners import by_column, iid
from fedbm.errors import FedBMError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(60, 180, (12, 16, 16, 3), dtype=np.uint8)
SPLIT = [0] * 8 + [1, 1, 2, 2]
TOY = make_dataset(IMAGES, [0, 1] * 6, SPLIT)
HALVES = iid(np.arange(8), 2, seed=0)


def test_changes_by_hand() -> None:
    """Grey levels 100 and 200: mean 150."""
    image = np.array([[[100], [200]], [[100], [200]]], dtype=np.uint8)
    assert change(image, "brightness", 0.2, RNG)[0, :, 0].tolist() == [151, 251]
    assert change(image, "brightness", 0.3, RNG)[0, :, 0].tolist() == [176, 255]
    assert change(image, "brightness", -0.5, RNG)[0, :, 0].tolist() == [0, 72]
    assert change(image, "contrast", 0.5, RNG)[0, :, 0].tolist() == [75, 225]
    assert change(image, "contrast", -0.5, RNG)[0, :, 0].tolist() == [125, 175]


def test_blur_and_noise() -> None:
    point = np.zeros((17, 17, 2), dtype=np.uint8)
    point[8, 8, 0] = 255
    blurred = change(point, "blur", 0.5, RNG).astype(int)  # σ = 17/16
    assert blurred[8, 8, 0] == pytest.approx(255 / (2 * np.pi * (17 / 16) ** 2), abs=2)
    assert blurred[8, 9, 0] == blurred[7, 8, 0] > blurred[7, 9, 0] > 0
    assert not blurred[..., 1].any()  # channels are not mixed
    grey = np.full((64, 64, 1), 128, dtype=np.uint8)
    assert change(grey, "noise", 0.1, RNG).std() == pytest.approx(25.5, rel=0.05)


@pytest.mark.parametrize("kind", ["brightness", "contrast", "blur", "noise"])
def test_only_the_training_images_change_each_as_its_client_does(kind: str) -> None:
    partition = shift_features(HALVES, kind, 0.5, seed=3)
    assert partition.shift is not None
    first, second = partition.shift.levels
    assert {first, second} == ({-1.0, 1.0} if kind in ("brightness", "contrast") else {0.0, 1.0})
    shifted = shift_images(TOY, partition)
    assert np.array_equal(shifted, shift_images(TOY, partition))
    changed = [bool((shifted[i] != IMAGES[i]).any()) for i in range(12)]
    moved = [c for c, level in zip(HALVES.clients, partition.shift.levels, strict=True) if level]
    assert [i for i in range(12) if changed[i]] == sorted(np.concatenate(moved).tolist())
    assert TOY.images is IMAGES


def test_a_partition_without_shift_keeps_the_images_of_the_data_set() -> None:
    assert shift_images(TOY, HALVES) is IMAGES


def test_images_of_a_site_change_in_all_subsets() -> None:
    """Three sites in turn, one of them held out: val and test images change like the training images of their site."""
    sites = np.array(["a", "b", "c"] * 4)
    data = make_dataset(IMAGES, [0, 1] * 6, SPLIT, columns={"site": sites})
    partition = shift_features(by_column(data.columns, np.arange(8), "site", held_out=["b"]), "brightness", 0.1, 0)
    assert partition.shift is not None
    shifted = shift_images(data, partition).astype(int)
    level = dict(zip(("a", "c", "b"), partition.shift.levels, strict=True))
    for sample in range(12):
        offset = 25.5 * level[sites[sample]]
        assert np.abs(shifted[sample] - (IMAGES[sample] + offset)).max() <= 0.5


def test_the_shift_is_part_of_the_digest_and_survives_json() -> None:
    whole = hold_out(iid(np.arange(8), 4, seed=0), 1)
    partition = shift_features(whole, "noise", 0.3, seed=5)
    saved = json.loads(json.dumps(partition.to_json(TOY.labels, TOY.classes)))
    again = parse_partition(saved, "saved")
    assert again.shift == partition.shift
    assert again.digest == partition.digest
    others = [whole, shift_features(whole, "noise", 0.4, 5), shift_features(whole, "blur", 0.3, 5)]
    others.append(shift_features(whole, "noise", 0.3, 6))
    assert partition.digest not in {other.digest for other in others}
    assert repr(partition) == "Partition(iid: 3 clients with 2 samples, 1 held out, noise shift)"


@pytest.mark.parametrize(
    ("partition", "kind", "strength", "sentence"),
    [
        (HALVES, "hue", 0.2, 'the kind of feature shift is "hue", but it must be brightness, contrast, blur or noise'),
        (HALVES, "blur", 0.0, "the strength of a feature shift is 0.0, but it must be above 0 and at most 1"),
        (shift_features(HALVES, "blur"), "noise", 0.2, "the partition has a blur shift already"),
    ],
)
def test_mistakes(partition: Partition, kind: str, strength: float, sentence: str) -> None:
    with pytest.raises(FedBMError, match=sentence):
        shift_features(partition, kind, strength)
