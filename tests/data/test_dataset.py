"""Loading data sets: the cache, what the catalogue adds, and mistakes."""

from __future__ import annotations

import json
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedbm.data import dataset
from fedbm.data.catalog.entries import CATALOG
from fedbm.data.dataset import load
from fedbm.data.splits import find_shared_groups
from fedbm.errors import FedBMError

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
HAM10000 = SHARED / "ham10000_128.npz"


def make_folder(root: Path, classes: tuple[str, ...] = ("polyp_large", "z-line"), each: int = 10) -> Path:
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(each):
            Image.new("RGB", (20, 20), (label * 20, i, 0)).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path / "clinic")


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def only_entry(cache: Path) -> Path:
    (found,) = cache.iterdir()
    return found


def test_a_folder_becomes_a_data_set(folder, cache) -> None:
    data = load(folder, size=16, cache=cache)
    assert data.name == "clinic"
    assert data.classes == ("polyp_large", "z-line")
    assert data.concepts == ("polyp large", "z line")
    assert data.modality == "medical"
    assert data.shape == (3, 16, 16)
    assert data.counts().tolist() == [[7, 7], [1, 1], [2, 2]]
    assert [len(data.indices(subset)) for subset in ("train", "val", "test")] == [14, 2, 4]
    assert (data.images[data.labels == 1][:, 0, 0, 0] == 20).all()
    assert data.recommends == {}
    assert [note.split(":")[0] for note in data.notes] == [
        "the catalogue has no data set with the classes of clinic",
        "each class of clinic was split 7",
    ]
    with pytest.raises(FedBMError, match='unknown subset "training"'):
        data.indices("training")


def test_images_are_memory_mapped_and_accepted_by_torch(folder, cache) -> None:
    data = load(folder, size=16, cache=cache)
    assert isinstance(data.images, np.memmap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_numpy(data.images)[0] = 7  # changes only this process: the file is never written
    assert (data.images[0] == 7).all()
    assert load(folder, size=16, cache=cache, verify=True).notes == data.notes


def test_a_cached_data_set_is_not_decoded_again(folder, cache, monkeypatch) -> None:
    first = load(folder, size=16, cache=cache)
    monkeypatch.setattr(dataset, "decode_images", None)
    again = load(folder, size=16, cache=cache)
    assert again.checksum == first.checksum
    assert again.notes == first.notes
    assert (again.images == first.images).all()


def test_the_cache_key_covers_all_settings(folder, cache) -> None:
    def checksum(**settings) -> str:
        return load(folder, cache=cache, **{"size": 16} | settings).checksum

    base = checksum()
    assert len({base, checksum(size=20), checksum(channels=1), checksum(split_seed=1)}) == 4
    assert checksum(on_bad_file="skip") == base  # the same data in a separate cache entry
    Image.new("RGB", (20, 20)).save(folder / "z-line" / "10.png")
    assert checksum() != base
    assert len(list(cache.iterdir())) == 6
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_the_checksum_does_not_depend_on_the_location(folder, tmp_path) -> None:
    elsewhere = make_folder(tmp_path / "other")
    first = load(folder, size=16, cache=tmp_path / "a")
    assert load(elsewhere, size=16, cache=tmp_path / "b").checksum == first.checksum


def test_the_manifest_describes_the_arrays(folder, cache) -> None:
    data = load(folder, size=16, cache=cache)
    manifest = json.loads((only_entry(cache) / "manifest.json").read_text())
    assert (manifest["format"], manifest["shape"]) == (4, [20, 16, 16, 3])
    assert manifest["classes"] == list(data.classes)
    assert manifest["checksum"] == data.checksum
    assert manifest["made_with"]["from"] == str(folder)
    assert set(manifest["files"]) == {"images", "labels", "split", "ids"}


def test_ids_and_columns_are_cached(folder, cache) -> None:
    names = [f"{name}/{i}.png" for name in ("polyp_large", "z-line") for i in range(10)]
    lines = [f"{name},клиника {i % 4},{'' if i else 'x'}" for i, name in enumerate(names)]
    (folder.parent / "about.csv").write_text("\n".join(["image,site,remark", *lines]), encoding="utf-8")
    plain = load(folder, size=16, cache=cache)
    assert (plain.ids.tolist(), plain.columns) == (names, {})
    for _ in ("built", "opened"):
        data = load(folder, size=16, cache=cache, metadata=folder.parent / "about.csv", verify=True)
        assert data.ids.tolist() == names
        assert data.columns["site"].tolist() == [f"клиника {i % 4}" for i in range(20)]
        assert data.columns["remark"].tolist() == ["x"] + [""] * 19
        assert data.checksum == plain.checksum  # columns do not change the data
    grouped = load(folder, size=16, cache=cache, metadata=folder.parent / "about.csv", group="site")
    assert find_shared_groups(grouped.split, grouped.columns["site"]) == []
    assert grouped.checksum != plain.checksum


def test_columns_match_the_samples_after_skipping(folder, cache) -> None:
    (folder / "polyp_large" / "3.png").write_bytes(b"")
    lines = [f"{name}/{i},site {i}" for name in ("polyp_large", "z-line") for i in range(10)]
    (folder.parent / "about.csv").write_text("\n".join(["image,site", *lines]))
    data = load(folder, size=16, cache=cache, metadata=folder.parent / "about.csv", on_bad_file="skip")
    assert "polyp_large/3.png" not in data.ids
    assert data.columns["site"].tolist() == [f"site {i}" for i in (0, 1, 2, 4, 5, 6, 7, 8, 9, *range(10))]


def test_changed_metadata_is_joined_again(folder, cache) -> None:
    def sites(text: str) -> set[str]:
        lines = [f"{name}/{i},{text}" for name in ("polyp_large", "z-line") for i in range(10)]
        (folder.parent / "about.csv").write_text("\n".join(["image,site", *lines]))
        return set(load(folder, size=16, cache=cache, metadata=folder.parent / "about.csv").columns["site"])

    assert (sites("north"), sites("south")) == ({"north"}, {"south"})
    with pytest.raises(FedBMError, match=r"cannot read .*nowhere.csv: No such file"):
        load(folder, size=16, cache=cache, metadata=folder / "nowhere.csv")


def test_the_default_cache_follows_the_environment(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDBM_HOME", str(tmp_path / "home"))
    load(folder, size=16)
    assert only_entry(tmp_path / "home").name.startswith("clinic-16-")
    monkeypatch.delenv("FEDBM_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dataset.default_cache() == tmp_path / ".cache" / "fedbm"


# --- damage ------------------------------------------------------------------------------------------------


def truncate_images(place: Path) -> None:
    with (place / "images.npy").open("r+b") as stream:
        stream.truncate(1000)


def remove_manifest(place: Path) -> None:
    (place / "manifest.json").unlink()


def corrupt_manifest(place: Path) -> None:
    (place / "manifest.json").write_text('{"format": 1}')


def change_type_in_manifest(place: Path) -> None:
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps({**manifest, "files": list(manifest["files"])}))


def change_format(place: Path) -> None:
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps(manifest | {"format": 0}))


def remove_labels(place: Path) -> None:
    (place / "labels.npy").unlink()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def change_a_label(place: Path) -> None:
    flip_a_bit(place / "labels.npy")


def move_a_sample(place: Path) -> None:
    flip_a_bit(place / "split.npy")


@pytest.mark.parametrize(
    "damage",
    [
        truncate_images,
        remove_manifest,
        corrupt_manifest,
        change_type_in_manifest,
        change_format,
        remove_labels,
        change_a_label,
        move_a_sample,
    ],
)
def test_a_damaged_cache_entry_is_rebuilt_with_a_note(folder, cache, damage) -> None:
    first = load(folder, size=16, cache=cache)
    images = np.array(first.images)  # a truncated memory-mapped file must not be accessed again
    damage(only_entry(cache))
    rebuilt = load(folder, size=16, cache=cache)
    assert rebuilt.checksum == first.checksum
    assert (rebuilt.images == images).all()
    assert "was damaged" in rebuilt.notes[-1]
    assert load(folder, size=16, cache=cache, verify=True).notes == first.notes
    only_entry(cache)


def test_verify_finds_a_flipped_bit(folder, cache) -> None:
    load(folder, size=16, cache=cache)
    images = only_entry(cache) / "images.npy"
    sound = images.read_bytes()
    flip_a_bit(images)
    assert "wrong checksum" in load(folder, size=16, cache=cache, verify=True).notes[-1]
    assert images.read_bytes() == sound
    manifest = only_entry(cache) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"z-line"', '"z-lime"'))
    assert load(folder, size=16, cache=cache, verify=True).classes == ("polyp_large", "z-line")


def test_concurrent_preparation_succeeds(folder, cache) -> None:
    with ThreadPoolExecutor(4) as pool:
        data = list(pool.map(lambda _: load(folder, size=16, cache=cache), range(4)))
    assert len({one.checksum for one in data}) == 1
    only_entry(cache)


def test_a_failure_leaves_nothing_behind(folder, cache, monkeypatch) -> None:
    def full(*_args, **_options) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(FedBMError, match=r"cannot write .*No space left on device"):
        load(folder, size=16, cache=cache)
    assert list(cache.iterdir()) == []


def test_stale_temporary_folders_are_removed_after_a_day(folder, cache) -> None:
    old, new = (cache / f".clinic-16-abc.{letter * 8}.part" for letter in "ab")
    for folder_left in (old, new):
        folder_left.mkdir(parents=True)
        (folder_left / "images.npy").touch()
    yesterday = time.time() - 25 * 60 * 60
    os.utime(old, (yesterday, yesterday))
    load(folder, size=16, cache=cache)
    assert not old.exists()
    assert new.exists()


# --- what the catalogue knows ------------------------------------------------------------------------------


def test_known_classes_use_the_catalogue(tmp_path, cache) -> None:
    entry = CATALOG["oct-c8"]
    data = load(make_folder(tmp_path / "retina", tuple(entry.classes), each=3), size=16, cache=cache)
    assert (data.name, data.recommends) == ("retina", {}), "own data keep their name and the general settings"
    assert data.concepts[4] == "diabetic retinopathy"
    assert (data.modality, data.mean, data.std) == ("OCT", entry.mean, entry.std)
    assert data.notes[0] == (
        "retina has the same classes as oct-c8, so its concepts, modality, colour statistics and flips are used"
    )
    assert not any("catalogue" in note for note in data.notes)
    copy = load(make_folder(tmp_path / "oct-c8_16", tuple(entry.classes), each=3), size=16, cache=cache)
    assert (copy.name, copy.recommends["temperature"]) == ("oct-c8", {0.05: 17.5, 0.1: 12.5})


def test_classes_0_to_9_are_not_taken_for_digits(tmp_path, cache) -> None:
    data = load(make_folder(tmp_path / "grades", tuple("0123456789"), each=3), cache=cache)
    assert (data.name, data.shape, data.recommends) == ("grades", (3, 128, 128), {})
    assert (data.modality, data.concepts[3], data.hflip) == ("medical", "3", True)
    assert data.notes[0].startswith("the catalogue has no data set with the classes of grades: methods that use texts")


def test_colour_statistics_are_averaged_for_grey(tmp_path, cache) -> None:
    data = load(
        make_folder(tmp_path / "retina", tuple(CATALOG["oct-c8"].classes), 3),
        size=16,
        channels=1,
        cache=cache,
    )
    assert data.shape == (1, 16, 16)
    assert data.mean == pytest.approx([(0.485 + 0.456 + 0.406) / 3])
    assert data.std == pytest.approx([(0.229 + 0.224 + 0.225) / 3])


def test_own_concepts_replace_class_names(folder, cache) -> None:
    data = load(folder, size=16, cache=cache, concepts={"z-line": "normal z-line"})
    assert data.concepts == ("polyp large", "normal z-line")
    assert "encode the class names with a language model" in data.notes[0]
    both = {"z-line": "normal z-line", "polyp_large": "large polyp"}
    assert not any("concepts" in note for note in load(folder, size=16, cache=cache, concepts=both).notes)


def test_digits_are_built_in(cache) -> None:
    data = load("digits", cache=cache)
    assert data.shape == (1, 32, 32)
    assert data.counts().sum(axis=1).tolist() == [1258, 180, 359]
    assert (data.mean, data.std, data.hflip, data.vflip) == ((0.5,), (0.5,), False, False)
    assert data.concepts[3] == CATALOG["digits"].classes["3"]
    colour = load("digits", channels=3, size=16, cache=cache)
    assert colour.shape == (3, 16, 16)
    assert colour.mean == (0.5, 0.5, 0.5)


def test_normalisation_may_be_measured_or_given(folder, cache) -> None:
    rng = np.random.default_rng(0)
    for path in folder.glob("*/*.png"):
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    usual = load(folder, size=16, cache=cache)
    own = load(folder, size=16, cache=cache, normalise="own")
    training = own.images[own.split == 0].reshape(-1, 3) / 255
    assert own.mean == pytest.approx(training.mean(axis=0).tolist())
    assert own.std == pytest.approx(training.std(axis=0).tolist())
    assert own.notes[-1].startswith("normalised by mean ")
    given = load(folder, size=16, cache=cache, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert (given.mean, given.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert own.checksum == given.checksum == usual.checksum
    assert len(list(cache.iterdir())) == 1


# --- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"size": 12}, "image size 12 is not supported: use a multiple of 4 from 16 up"),
        ({"size": 30}, "image size 30"),
        ({"size": 0}, "image size 0"),
        ({"channels": 2}, "2 channels are not supported"),
        ({"on_bad_file": "ignore"}, 'on_bad_file must be refuse or skip, not "ignore"'),
        (
            {"split": "strat"},
            r'split must be auto, .* or grouped, not "strat" \(did you mean "stratified"\?\)',
        ),
        ({"normalise": "Own"}, r'normalise must be fixed or own, not "Own" \(did you mean "own"\?\)'),
        (
            {"split": "official", "group": "patient"},
            'group = "patient" has no effect with split = "official": use split = "grouped"',
        ),
        ({"split": "official"}, "clinic has no split of its own"),
        ({"mean": (0.5, 0.5, 0.5)}, "mean and std must have one number per channel, here 3"),
        ({"mean": (0.5,), "std": (0.5,)}, "mean and std must have one number per channel, here 3"),
        ({"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0)}, "and std must be above 0"),
        (
            {"mean": (0.5,) * 3, "std": (1,) * 3, "normalise": "own"},
            'mean and std have no effect with normalise = "own"',
        ),
        (
            {"group": "patient"},
            'clinic has no column "patient" for a grouped split .*: set group, or add columns with metadata',
        ),
        ({"concepts": {"z-lime": "x"}}, r'"z-lime", which clinic does not have \(did you mean "z-line"\?\)'),
        ({"concepts": {"z-line": " "}}, 'the concept text of class "z-line" is empty'),
    ],
)
def test_wrong_settings_are_refused(folder, cache, settings, sentence) -> None:
    with pytest.raises(FedBMError, match=sentence):
        load(folder, cache=cache, **settings)
    assert not cache.exists()


def test_a_missing_data_set_says_how_to_get_it() -> None:
    with pytest.raises(
        FedBMError, match=r"pbc are not here: run .fedbm data get pbc., .* --data PATH, .* --data-dir DIR"
    ):
        load("pbc")


def test_mistyped_names_and_paths_suggest_the_nearest(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(
        FedBMError,
        match=r'and no data set is called "digit" \(did you mean "digits"\?\)',
    ):
        load("digit")
    with pytest.raises(FedBMError, match=r'no data set is called "clinik" \(did you mean "clinic"\?\)'):
        load("clinik")
    with pytest.raises(FedBMError, match=r'clinik does not exist .*\(did you mean "clinic"\?\)'):
        load(str(folder.with_name("clinik")))
    with pytest.raises(FedBMError, match=r"images\.npz does not exist"):
        load("images.npz")


def test_a_local_folder_may_have_a_catalogue_name(tmp_path, cache, monkeypatch) -> None:
    make_folder(tmp_path / "kvasir")
    monkeypatch.chdir(tmp_path)
    assert load("kvasir", size=16, cache=cache).classes == ("polyp_large", "z-line")
    assert "the catalogue has no data set" in load("kvasir", size=16, cache=cache).notes[0]


def test_skipped_files_are_noted_and_must_not_empty_a_class(folder, cache) -> None:
    for i in range(10):
        (folder / "z-line" / f"{i}.png").write_bytes(b"" if i >= 5 else (folder / "z-line/0.png").read_bytes())
    data = load(folder, size=16, cache=cache, on_bad_file="skip")
    assert "skipped unreadable images: 5, the first is z-line/5.png" in data.notes
    assert load(folder, size=16, cache=cache, on_bad_file="skip").notes == data.notes
    for i in range(4):
        (folder / "z-line" / f"{i}.png").write_bytes(b"")
    with pytest.raises(FedBMError, match='clinic has too few images of class "z-line": 1, '):
        load(folder, size=16, cache=cache, on_bad_file="skip")


def test_an_unwritable_cache_is_reported(folder, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FedBMError, match="cannot write"):
        load(folder, size=16, cache=tmp_path / "file" / "cache")


def denied(path: object, *_args: object, **_options: object) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_an_unreadable_source_is_reported(folder, cache, monkeypatch) -> None:
    (folder.parent / "scans.npz").touch()
    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(FedBMError, match=r"^cannot read .*clinic: Permission denied$"):
        load(folder, cache=cache)
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(FedBMError, match=r"^cannot read .*scans.npz: Permission denied$"):
        load(folder.parent / "scans.npz", cache=cache)


@pytest.mark.skipif(not HAM10000.exists(), reason="needs ../shared/data/ham10000_128.npz")
def test_ham10000_is_prepared_as_published(cache) -> None:
    data = load(HAM10000, size=32, cache=cache)
    assert data.name == "ham10000"
    assert data.counts().tolist() == [
        [228, 359, 769, 80, 779, 4693, 99],
        [33, 52, 110, 12, 111, 671, 14],
        [66, 103, 220, 23, 223, 1341, 29],
    ]
    assert data.shape == (3, 32, 32)
    assert len(data.notes) == 1
    assert data.notes[0].startswith("ham10000_128 has the same classes as ham10000")
    assert os.path.getsize(only_entry(cache) / "images.npy") == 10_015 * 32 * 32 * 3 + 128
