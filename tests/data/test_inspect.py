"""Counts, pixel statistics, duplicate images and warnings, on images made by the tests."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import SHARED, encoded, make_dataset
from PIL import Image, ImageChops, ImageEnhance

from fedbm.data.dataset import Dataset, load
from fedbm.data.inspection import duplicates
from fedbm.data.inspection.duplicates import find_exact_duplicates, find_near_duplicates
from fedbm.data.inspection.inspect import inspect, measure_pixels, save_contact_sheet
from fedbm.data.inspection.problems import choose_samples


def noise(count: int, size: int = 40, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Return images of smooth blobs, all of them different."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 6, 6, channels), dtype=np.uint8)
    small = [Image.fromarray(image.squeeze()) for image in coarse]
    return np.stack([np.asarray(image.resize((size, size))).reshape(size, size, channels) for image in small])


def inspected(images, labels=None, split=None, classes=("cyst", "polyp"), **more):
    return inspect(dataset_of(images, labels, split, classes, **more))


def test_statistics_of_sites_combine_to_those_of_all_images():
    """By the formulas of docs/your-data.md, which hospitals use because no machine sees the images of all."""
    sites = [noise(10, seed=1), noise(35, seed=2) // 2 + 100]
    found = [inspected(images).pixels for images in sites]
    n = np.array([[6], [21]])  # training images
    means, stds = (np.array([getattr(pixels, key) for pixels in found]) for key in ("mean", "std"))
    mean = (n * means).sum(0) / n.sum()
    std = np.sqrt((n * (stds**2 + means**2)).sum(0) / n.sum() - mean**2)
    whole = inspected(np.concatenate(sites)).pixels
    assert np.allclose(mean, whole.mean, atol=1e-12)
    assert np.allclose(std, whole.std, atol=1e-12)


def dataset_of(images, labels=None, split=None, classes=("cyst", "polyp"), **more) -> Dataset:
    """Return a data set with alternating labels. Of every five samples 3 are train, 1 is val and 1 is test."""
    count = len(images)
    labels = np.arange(count) % len(classes) if labels is None else labels
    split = ([0, 0, 0, 1, 2] * count)[:count] if split is None else split
    return make_dataset(images, labels, split, classes, ids=np.array([f"{i}.png" for i in range(count)]), **more)


# --- duplicates -----------------------------------------------------------------------------------------------------


def test_exact_duplicates_name_training_samples_first() -> None:
    """Samples 1, 4 and 5 are the same image, and 4 comes first because it trains. 0 and 2 are another image."""
    images = noise(6)
    images[[1, 5]] = images[4]
    images[2] = images[0]
    split = np.array([0, 2, 1, 0, 0, 1], dtype=np.uint8)
    assert sorted(map(tuple, find_exact_duplicates(images, split).tolist())) == [(0, 2), (4, 1), (4, 5)]


def modified(image: np.ndarray, how: str) -> np.ndarray:
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
def test_near_duplicates_are_found(how) -> None:
    images = np.clip(noise(60, size=128), 0, 220).astype(np.uint8)
    images[40] = modified(images[7], how)
    assert not np.array_equal(images[40], images[7])
    split = np.zeros(60, dtype=np.uint8)
    split[7] = 2
    none = np.array([], dtype=np.int64)
    pairs, complete = find_near_duplicates(images, split, none)
    assert (pairs.tolist(), complete) == ([[40, 7]], True)
    assert find_near_duplicates(images, split, np.array([7]))[0].tolist() == []


def test_blank_images_are_not_duplicates() -> None:
    flat = np.full((8, 16, 16, 1), 40, dtype=np.uint8)
    flat += np.random.default_rng(0).integers(0, 2, flat.shape, dtype=np.uint8)
    pairs, _ = find_near_duplicates(flat, np.zeros(8, dtype=np.uint8), np.array([], dtype=np.int64))
    assert len(pairs) == 0


def test_the_search_stops_at_the_limit(monkeypatch) -> None:
    images = noise(1).repeat(200, axis=0)
    images[:, 0, 0, 0] = np.arange(200)
    split, none = np.zeros(200, dtype=np.uint8), np.array([], dtype=np.int64)
    every, complete = find_near_duplicates(images, split, none)
    assert (len(every), complete) == (19_900, True)
    monkeypatch.setattr(duplicates, "MAX_PAIRS", 10)
    some, complete = find_near_duplicates(images, split, none)
    assert (some.tolist(), complete) == (every[:10].tolist(), False)


# --- pixels ---------------------------------------------------------------------------------------------------------


def test_pixel_statistics_by_hand() -> None:
    """Training: one black and one white image in the first channel, both 51 (0.2) in the second; test: 200 and 7."""
    images = np.zeros((3, 16, 16, 2), dtype=np.uint8)
    images[1, ..., 0] = 255
    images[:2, ..., 1] = 51
    images[2] = 200
    images[2, 0, 0, 0] = 7
    found = measure_pixels(images, np.array([0, 0, 2], dtype=np.uint8))
    assert found.mean == pytest.approx((0.5, 0.2))
    assert found.std == pytest.approx((0.5, 0.0), abs=1e-12)
    assert (found.low, found.high) == (0, 255)
    assert found.constant == (0, 1)


@settings(derandomize=True, max_examples=20)
@given(st.integers(1, 300), st.sampled_from([1, 3]), st.integers(0, 99))
def test_pixel_statistics_equal_numpy(count, channels, seed) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16, channels), dtype=np.uint8)
    found = measure_pixels(images, np.zeros(count, dtype=np.uint8))
    assert found.mean == pytest.approx(tuple((images / 255).mean(axis=(0, 1, 2))))
    assert found.std == pytest.approx(tuple((images / 255).std(axis=(0, 1, 2))))


# --- warnings -------------------------------------------------------------------------------------------------------


def test_good_data_gives_no_warning() -> None:
    assert inspected(noise(60)).warnings == []


def test_rare_classes_and_imbalance() -> None:
    labels, split = [0] * 150 + [1] * 12, [0] * 100 + [1] * 25 + [2] * 25 + [0] * 4 + [1] * 3 + [2] * 5
    assert inspected(noise(162), labels, split).warnings == [
        "classes with fewer than 10 train images: polyp (4)",
        "classes with fewer than 5 val images: polyp (3)",
        "cyst has 25 times the training images of polyp: use macro-F1, because accuracy hides rare classes",
    ]


def test_duplicates_in_different_subsets_or_with_two_labels_are_named() -> None:
    """4 is a copy of 0, 9 is nearly a copy of 1, and 11 is a copy of 10 with another label."""
    images = noise(60)
    images[4], images[11] = images[0], images[10]
    images[9] = np.where(images[1] < 250, images[1] + 2, images[1])
    assert inspected(images).warnings == [
        "pairs of duplicate images in different subsets: 4.png (test) = 0.png (train)",
        "pairs of nearly equal images in different subsets: 9.png (test) ≈ 1.png (train)",
        "images with two labels: 10.png (cyst) and 11.png (polyp)",
    ]


def test_long_lists_are_shortened() -> None:
    images = noise(60)
    images[[4, 9, 14, 19, 24]] = images[[0, 5, 10, 15, 20]]
    (warning,) = (w for w in inspected(images).warnings if "duplicate images" in w)
    assert warning.startswith("pairs of duplicate images in different subsets: ")
    assert warning.endswith("14.png (test) = 10.png (train) and 2 more")


def test_blank_and_dark_images() -> None:
    images = noise(60) // 8
    images[3] = 9
    assert inspected(images).warnings == [
        "images with a single colour: 3.png",
        "the values of 32 sampled images are only 0 to 31 of 255, so at most 32 grey levels remain: check how they "
        "were scaled, and set --value-range for 16-bit and DICOM files",
    ]


def test_shared_values_are_counted_without_empty_ones() -> None:
    """Samples 0, 1 and 3 (train, train, val) are Ann's, 2 is Bob's, and the writer of the others is unknown."""
    writers = np.array(["Ann", "Ann", "Bob", "Ann"] + [""] * 56)
    found = inspected(noise(60), columns={"writer": writers})
    assert found.shared == {"writer": ["Ann"]}
    assert found.to_json()["shared_values"] == {"writer": 1}


def test_shared_patients_give_a_warning_and_shared_sites_do_not() -> None:
    columns = {"Patient ID": np.repeat(["Ann", "Bob", "Cem", "Dag"], 15), "site": np.repeat(["x", "y"], 30)}
    found = inspected(noise(60), columns=columns)
    assert found.shared["site"] == ["x", "y"]
    assert found.warnings == [
        "values of Patient ID in more than one subset, so scores may be too high: Ann, Bob, Cem and 1 more"
    ]


def test_an_incomplete_search_gives_a_warning() -> None:
    found = replace(inspected(noise(60)), near_complete=False)
    assert found.warnings == [
        "very many images look the same, like frames of a video, so only some pairs were compared"
    ]
    assert found.to_json()["duplicates"]["near"]["complete"] is False


def test_the_result_can_be_written_as_json() -> None:
    images = noise(60)
    images[4] = images[0]
    made = json.loads(json.dumps(inspected(images).to_json()))
    assert made["counts"] == {
        "train": {"cyst": 18, "polyp": 18},
        "val": {"cyst": 6, "polyp": 6},
        "test": {"cyst": 6, "polyp": 6},
    }
    assert (made["format"], made["name"], made["shape"], made["checksum"]) == (1, "toy", [3, 40, 40], "abc")
    assert made["pixels"]["constant_share"] == 0
    assert made["duplicates"]["exact"] == {
        "pairs": 1,
        "across_splits": 1,
        "first_across": [[{"id": "0.png", "split": "train"}, {"id": "4.png", "split": "test"}]],
    }
    assert len(made["warnings"]) == 1


# --- contact sheet --------------------------------------------------------------------------------------------------


def test_the_contact_sheet_has_a_row_for_each_class(tmp_path) -> None:
    """Cells have 64 pixels and gaps of 3. A class of two images leaves six cells white."""
    data = dataset_of(noise(43, size=32), [0] * 40 + [1] * 3, [0] * 42 + [1], classes=("Zyste ö", "two\nlines"))
    assert choose_samples(data, 0, 8) == [0, 6, 11, 17, 22, 28, 33, 39]
    assert choose_samples(data, 1, 8) == [40, 41]
    save_contact_sheet(tmp_path / "samples.png", data)
    sheet = np.asarray(Image.open(tmp_path / "samples.png"))
    assert sheet.shape[0] == 3 + 2 * 67
    last = sheet[3:67, -67:-3]
    assert np.array_equal(last, data.images[39].repeat(2, axis=0).repeat(2, axis=1))
    assert (sheet[70:134, -6 * 67 :] == 255).all()
    assert (sheet[:, :20] < 128).any()  # the names


def test_the_contact_sheet_of_grey_images(tmp_path) -> None:
    save_contact_sheet(tmp_path / "samples.png", dataset_of(noise(20, size=80, channels=1)))
    assert Image.open(tmp_path / "samples.png").size[1] == 3 + 2 * 83


# --- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "kvasir_v1_128.npz").exists(), reason="needs ../shared/data/kvasir_v1_128.npz")
def test_kvasir_has_duplicates_in_different_subsets(tmp_path) -> None:
    """Some of its 4,000 images occur twice with the same label, and this split separates them."""
    found = inspect(load(SHARED / "kvasir_v1_128.npz", size=32))
    made = found.to_json()
    assert made["duplicates"]["exact"]["across_splits"] >= 1
    assert 5 < made["duplicates"]["near"]["across_splits"] < 50
    near = found.near
    assert (found.dataset.labels[near[:, 0]] == found.dataset.labels[near[:, 1]]).mean() > 0.9
