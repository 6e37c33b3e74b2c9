"""Counts, pixels, twins and warnings, on images whose traits are known because the test makes them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import SHARED, encoded
from PIL import Image, ImageChops, ImageEnhance

from fedbm.data.dataset import Dataset, load
from fedbm.data.inspection.contact_sheet import chosen, save_grid
from fedbm.data.inspection.duplicates import close_hashes, exact_twins, near_twins
from fedbm.data.inspection.inspect import inspect, pixel_statistics


def noise(count: int, size: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Images of smooth blobs, no two alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 6, 6, channels), dtype=np.uint8)
    small = [Image.fromarray(image.squeeze()) for image in coarse]
    return np.stack([np.asarray(image.resize((size, size))).reshape(size, size, channels) for image in small])


def a_dataset(images, labels=None, split=None, classes=("cyst", "polyp"), **more) -> Dataset:
    count, channels = len(images), images.shape[3]
    return Dataset(
        name="toy",
        classes=classes,
        concepts=classes,
        modality="medical",
        images=images,
        labels=np.arange(count) % len(classes) if labels is None else np.array(labels),
        split=np.array([0, 0, 0, 1, 2] * count, dtype=np.uint8)[:count] if split is None else np.array(split, np.uint8),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        hflip=False,
        vflip=False,
        recommends={},
        checksum="abc",
        notes=(),
        ids=np.array([f"{i}.png" for i in range(count)]),
        **more,
    )


# --- twins ----------------------------------------------------------------------------------------------------------


def test_exact_twins_name_the_earliest_side_first() -> None:
    """Samples 1, 4 and 5 are one picture: the first is 4, which trains; 0 and 2 are another."""
    images = noise(6)
    images[[1, 5]] = images[4]
    images[2] = images[0]
    split = np.array([0, 2, 1, 0, 0, 1], dtype=np.uint8)
    assert sorted(map(tuple, exact_twins(images, split).tolist())) == [(0, 2), (4, 1), (4, 5)]


def changed(image: np.ndarray, how: str) -> np.ndarray:
    picture = Image.fromarray(image)
    if how == "brighter":
        picture = ImageEnhance.Brightness(picture).enhance(1.1)
    elif how == "resized":
        picture = picture.resize((60, 60)).resize(picture.size)
    elif how == "shifted":
        picture = ImageChops.offset(picture, 1)
    elif how == "re-encoded":
        picture = Image.open(io.BytesIO(encoded(picture, "JPEG", quality=40)))
    return np.asarray(picture)


@pytest.mark.parametrize("how", ["brighter", "resized", "shifted", "re-encoded"])
def test_near_twins_are_found_among_others(how) -> None:
    images = np.clip(noise(60, size=128), 0, 220).astype(np.uint8)
    images[40] = changed(images[7], how)
    assert not np.array_equal(images[40], images[7])
    split = np.zeros(60, dtype=np.uint8)
    split[7] = 2
    none = np.array([], dtype=np.int64)
    pairs, are_all = near_twins(images, split, none)
    assert (pairs.tolist(), are_all) == ([[40, 7]], True)
    assert near_twins(images, split, np.array([7]))[0].tolist() == []


def test_pictures_of_nothing_are_no_twins() -> None:
    flat = np.full((8, 16, 16, 1), 40, dtype=np.uint8)
    flat += np.random.default_rng(0).integers(0, 2, flat.shape, dtype=np.uint8)
    pairs, _ = near_twins(flat, np.zeros(8, dtype=np.uint8), np.array([], dtype=np.int64))
    assert len(pairs) == 0


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(0, 7), st.data())
def test_close_hashes_are_those_found_by_comparing_all(words, most, data) -> None:
    """Half of the words are others with a few bits turned, so that there is something to find."""
    for word in words[: len(words) // 2]:
        turned = data.draw(st.sets(st.integers(0, 63), max_size=8))
        words.append(word ^ sum(1 << bit for bit in turned))
    expected = [[i, j] for j in range(len(words)) for i in range(j) if (words[i] ^ words[j]).bit_count() <= most]
    pairs, are_all = close_hashes(np.array(words, dtype=np.uint64), most)
    assert (pairs.tolist(), are_all) == (sorted(expected), True)


def test_of_very_many_alike_only_some_are_compared() -> None:
    """300 equal hashes make 44,850 pairs; cut at 1,000, the lone pair that differs in its first band is still found."""
    lone = 0xFFFF_FFFF_FFFF_FFFF
    hashes = np.array([0] * 300 + [lone, lone ^ 1], dtype=np.uint64)
    every, are_all = close_hashes(hashes, 6)
    assert (len(every), are_all) == (44_851, True)
    some, are_all = close_hashes(hashes, 6, most_pairs=1000)
    assert not are_all
    assert 1000 <= len(some) < 1000 + 300
    assert [300, 301] in some.tolist()


# --- pixels ---------------------------------------------------------------------------------------------------------


def test_pixel_statistics_by_hand() -> None:
    """Training: one black and one white image in the first channel, both 51 (0.2) in the second; test: 200 and 7."""
    images = np.zeros((3, 16, 16, 2), dtype=np.uint8)
    images[1, ..., 0] = 255
    images[:2, ..., 1] = 51
    images[2] = 200
    images[2, 0, 0, 0] = 7
    found = pixel_statistics(images, np.array([0, 0, 2], dtype=np.uint8))
    assert found.mean == pytest.approx((0.5, 0.2))
    assert found.std == pytest.approx((0.5, 0.0), abs=1e-12)
    assert (found.low, found.high) == (0, 255)
    assert found.constant == (0, 1)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(1, 300), st.sampled_from([1, 3]), st.integers(0, 99))
def test_pixel_statistics_are_numpys(count, channels, seed) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16, channels), dtype=np.uint8)
    found = pixel_statistics(images, np.zeros(count, dtype=np.uint8))
    assert found.mean == pytest.approx(tuple((images / 255).mean(axis=(0, 1, 2))))
    assert found.std == pytest.approx(tuple((images / 255).std(axis=(0, 1, 2))))


# --- warnings -------------------------------------------------------------------------------------------------------


def test_sound_data_gives_no_warning() -> None:
    assert inspect(a_dataset(noise(60))).warnings == []


def test_rare_classes_and_imbalance() -> None:
    labels, split = [0] * 150 + [1] * 12, [0] * 100 + [1] * 25 + [2] * 25 + [0] * 4 + [1] * 3 + [2] * 5
    assert inspect(a_dataset(noise(162), labels, split)).warnings == [
        "1 class has fewer than 10 train images: polyp (4)",
        "1 class has fewer than 5 val images: polyp (3)",
        "cyst has 25 times the training images of polyp: look at macro-F1, for accuracy hides rare classes",
    ]


def test_twins_on_two_sides_and_with_two_labels_are_named() -> None:
    """Sides go 0 0 0 1 2 0 0 …, labels 0 1 0 1 …: 4 is a copy of 0, 9 nearly one of 1, and 11 is 10 by another name."""
    images = noise(60)
    images[4], images[11] = images[0], images[10]
    images[9] = np.where(images[1] < 250, images[1] + 2, images[1])
    assert inspect(a_dataset(images)).warnings == [
        "1 pair of images on two sides of the split are the same pixel for pixel: 4.png (test) = 0.png (train)",
        "1 pair of images on two sides of the split look alike: 9.png (test) ≈ 1.png (train)",
        "1 picture carries two labels: 10.png (cyst) and 11.png (polyp)",
    ]


def test_long_lists_are_cut() -> None:
    images = noise(60)
    images[[4, 9, 14, 19, 24]] = images[[0, 5, 10, 15, 20]]
    (warning,) = (w for w in inspect(a_dataset(images)).warnings if "pixel for pixel" in w)
    assert warning.startswith("5 pairs of images")
    assert warning.endswith("14.png (test) = 10.png (train) and 2 more")


def test_blank_and_dark_images() -> None:
    images = noise(60) // 8
    images[3] = 9
    assert inspect(a_dataset(images)).warnings == [
        "no pixel is brighter than 31 of 255: were the values scaled as they should be?",
        "1 image is of one colour throughout: 3.png",
    ]


def test_groups_on_two_sides_are_counted_and_unknown_ones_are_not() -> None:
    """Samples 0, 1 and 3 are Ann's (train, train, val), 2 is Bob's, and of the others nobody is known."""
    writers = np.array(["Ann", "Ann", "Bob", "Ann"] + [""] * 56)
    found = inspect(a_dataset(noise(60), columns={"writer": writers}))
    assert found.shared == {"writer": ["Ann"]}
    assert found.to_json()["on_two_sides"] == {"writer": 1}


def test_patients_on_two_sides_are_warned_of_and_sites_are_not() -> None:
    """Sides go 0 0 0 1 2: of every five samples in a row, one validates and one tests."""
    columns = {"Patient ID": np.repeat(["Ann", "Bob", "Cem", "Dag"], 15), "site": np.repeat(["x", "y"], 30)}
    found = inspect(a_dataset(noise(60), columns=columns))
    assert found.shared["site"] == ["x", "y"]
    assert found.warnings == [
        "4 values of Patient ID on two sides of the split, so scores may be too good: Ann, Bob, Cem and 1 more"
    ]


def test_it_is_said_where_not_all_pairs_were_compared() -> None:
    found = replace(inspect(a_dataset(noise(60))), near_are_all=False)
    assert found.warnings == [
        "very many images look alike, as frames of one film do: only some pairs of them were compared"
    ]
    assert found.to_json()["twins"]["near"]["are_all"] is False


def test_json_holds_everything_and_is_json() -> None:
    images = noise(60)
    images[4] = images[0]
    made = json.loads(json.dumps(inspect(a_dataset(images)).to_json()))
    assert made["counts"] == {
        "train": {"cyst": 18, "polyp": 18},
        "val": {"cyst": 6, "polyp": 6},
        "test": {"cyst": 6, "polyp": 6},
    }
    assert (made["format"], made["name"], made["shape"], made["checksum"]) == (1, "toy", [3, 32, 32], "abc")
    assert made["pixels"]["constant_share"] == 0
    assert made["twins"]["exact"] == {
        "pairs": 1,
        "across_splits": 1,
        "first_across": [[{"id": "0.png", "split": "train"}, {"id": "4.png", "split": "test"}]],
    }
    assert len(made["warnings"]) == 1


def test_samples_without_names_go_by_their_number() -> None:
    images = noise(60)
    images[4] = images[0]
    nameless = replace(a_dataset(images), ids=np.array([], dtype=np.str_))
    assert "sample 4 (test) = sample 0 (train)" in inspect(nameless).warnings[0]


# --- the sheet of samples -------------------------------------------------------------------------------------------


def test_the_sheet_has_a_row_for_each_class(tmp_path) -> None:
    """Cells of 64 with gaps of 3; the last cell of a row is at its place, a class of two leaves six cells white."""
    data = a_dataset(noise(43), [0] * 40 + [1] * 3, [0] * 42 + [1], classes=("Zyste ö", "two\nlines"))
    assert chosen(data, 0) == [0, 6, 11, 17, 22, 28, 33, 39]
    assert chosen(data, 1) == [40, 41]
    save_grid(tmp_path / "samples.png", data)
    sheet = np.asarray(Image.open(tmp_path / "samples.png"))
    assert sheet.shape[0] == 3 + 2 * 67
    last = sheet[3:67, -67:-3]
    assert np.array_equal(last, data.images[39].repeat(2, axis=0).repeat(2, axis=1))
    assert (sheet[70:134, -6 * 67 :] == 255).all()
    assert (sheet[:, :20] < 128).any()  # the names


def test_a_grey_sheet_is_drawn_too(tmp_path) -> None:
    save_grid(tmp_path / "samples.png", a_dataset(noise(20, size=80, channels=1)))
    assert Image.open(tmp_path / "samples.png").size[1] == 3 + 2 * 83


# --- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "kvasir_v1_128.npz").exists(), reason="needs ../shared/data/kvasir_v1_128.npz")
def test_kvasir_has_twins_on_two_sides(tmp_path) -> None:
    """Of its 4,000 pictures some are there twice, under one label; this split of it has them on both sides."""
    found = inspect(load(SHARED / "kvasir_v1_128.npz", size=32))
    made = found.to_json()
    assert made["twins"]["exact"]["across_splits"] >= 1
    assert 5 < made["twins"]["near"]["across_splits"] < 50
    near = found.near
    assert (found.dataset.labels[near[:, 0]] == found.dataset.labels[near[:, 1]]).mean() > 0.9
