"""Mistakes in data that training does not notice: each gives one sentence, in inspect() and at the start of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import make_dataset
from PIL import Image

from fedbm.cli import main
from fedbm.data.catalog.entries import CATALOG, describe_wordless
from fedbm.data.dataset import load
from fedbm.data.inspection.inspect import inspect
from fedbm.data.inspection.problems import find_problems
from fedbm.errors import FedBMError
from fedbm.language.concept_distribution import ConceptDistribution
from fedbm.runs.plan import make_plan
from fedbm.runs.run_config import make_config, to_sections

CLASSES = ("debris", "mucus")


def pixels(grey: tuple[bool, ...] = (False, False), size: int = 40, most: int = 255) -> np.ndarray:
    """Return 20 images of each class. The three channels of a grey class are equal, up to one level."""
    rng, images = np.random.default_rng(0), []
    for is_grey in grey:
        some = rng.integers(0, most, (20, size, size, 3))
        images.append(some[..., :1] + rng.integers(0, 2, some.shape) if is_grey else some)
    return np.concatenate(images).clip(0, 255).astype(np.uint8)


def problems(images: np.ndarray, classes: tuple[str, ...] = CLASSES, **settings: Any) -> list[str]:
    labels = np.repeat(np.arange(len(classes)), len(images) // len(classes))
    return find_problems(make_dataset(images, labels, [0, 0, 0, 1, 2] * (len(images) // 5), classes), **settings)


def test_no_trap() -> None:
    assert problems(pixels(), concepts=("food residue", "mucus")) == []
    assert problems(pixels(grey=(True, True))[..., :1]) == []


def test_a_grey_class_next_to_one_in_colour() -> None:
    assert problems(pixels(grey=(True, False))) == [
        '100% of the sampled images of class "debris" are grey, but 0% of class "mucus", so colour reveals the class: '
        "use channels = 1 (--channels 1), or images from the same devices"
    ]


def test_grey_images_in_three_channels() -> None:
    (sentence,) = problems(pixels(grey=(True, True)))
    assert sentence.startswith("all 24 sampled images are grey, but they are read as 3 channels: use channels = 1")


@pytest.mark.parametrize("offset", [0, 120])
def test_few_grey_levels(offset: int) -> None:
    """12-bit values in a 16-bit file; with an offset, as of a CT, they are bright."""
    (sentence,) = problems(pixels(most=16) + np.uint8(offset))
    assert f"are only {offset} to {offset + 15} of 255, so at most 16 grey levels" in sentence
    assert "set --value-range" in sentence


def test_class_names_that_differ_by_case_or_spaces() -> None:
    names = ("Colon polyp", "colon-polyp", "debris", "mucus", "mucus ", "MUCUS", "a", "A")
    images = np.tile(pixels(), (4, 1, 1, 1))
    assert problems(images, names) == [
        'classes differ only by case or spaces ("Colon polyp" and "colon-polyp", "mucus", "mucus " and "MUCUS"): '
        "give each class one name"
    ]


def test_words_for_a_missing_value() -> None:
    """Columns that do not group the images may have missing values, and "none" may be a name."""
    words = np.array(["NA", "none", "4", "5"] * 10)
    columns = {"Patient ID": words, "age": words}
    data = make_dataset(pixels(), [0] * 20 + [1] * 20, [0, 0, 0, 1, 2] * 8, ("None", "mucus"), columns=columns)
    found = [sentence.partition(":")[0] for sentence in find_problems(data)]
    assert found == ['the label of some images is "None"', 'the Patient ID of some images is "NA"']


def test_concepts_without_a_word() -> None:
    (sentence,) = problems(pixels(), concepts=("0", "粘液"))
    assert '("0" for class "debris", "粘液" for class "mucus"): describe the classes in [concepts]' in sentence
    for entry in CATALOG.values():
        assert list(describe_wordless(list(entry.classes), list(entry.classes.values()))) == []


@pytest.mark.parametrize(("size", "stem", "warned"), [(32, "7x7", True), (32, "3x3", False), (36, "7x7", False)])
def test_a_large_stem_on_small_images(size: int, stem: str, warned: bool) -> None:
    found = problems(pixels(size=size), stem=stem)
    assert [sentence for sentence in found if "stem = 3x3 (--stem 3x3)" in sentence] == found
    assert len(found) == warned
    assert problems(pixels(size=size), stem="") == []  # the user's own body


def write_folder(root: Path, images: np.ndarray, classes: tuple[str, ...] = CLASSES) -> Path:
    for number, image in enumerate(images):
        place = root / classes[number * len(classes) // len(images)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")
    return root


def test_inspect_and_run_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """A grey folder of 28 pixels, in three channels and with numbers as names. FedAvg does not read the names."""
    monkeypatch.chdir(tmp_path)
    scans = write_folder(tmp_path / "scans", pixels(grey=(True, True), size=28), ("0", "1"))
    assert main(["data", "inspect", str(scans)]) == 0
    inspected = capsys.readouterr().out
    settings = ["--size", "28", "--width", "8", "--clients", "2", "--rounds", "1"]
    assert main(["run", "--data", str(scans), "--method", "fedavg", *settings]) == 0
    ran = capsys.readouterr().out
    assert main(["compare", "--data", str(scans), "--methods", "fedavg", "--seeds", "1", *settings]) == 0
    compared = capsys.readouterr().out
    said = [" ".join(out.split()) for out in (inspected, ran, compared)]
    assert "enlarged from at most 28 to 128 pixels: size = 28 (--size 28) saves memory and time" in said[0]
    for out in said:
        assert out.count("but they are read as 3 channels") == 1
    assert ["--stem 3x3" in out for out in said] == [False, True, True]  # it was inspected at 128 pixels
    assert ["a language model cannot learn" in out for out in said] == [True, False, False]
    assert "describe the classes in [concepts] of the configuration file" in said[0]


def test_a_run_that_reads_concepts_warns_of_them(tmp_path: Path, tiny_fedbm: dict[str, Any]) -> None:
    """What the concept file was made from counts, not the names of the classes."""
    file, names = tmp_path / "concepts.safetensors", ("cyst", "normal", "polyp")
    ConceptDistribution.fit(names, ("0", "1", "2"), torch.randn(3, 4, 8), {"encoder": "made up"}).save(file)
    for path, warned in ((tiny_fedbm["concept_file"], False), (str(file), True)):
        notes = make_plan(make_config(to_sections({**tiny_fedbm, "concept_file": path}))).notes
        assert any('"0" for class "cyst"' in note for note in notes) == warned
        assert any("--stem 3x3" in note for note in notes)


def test_sizes_are_sampled_from_sources_of_every_kind(tmp_path: Path) -> None:
    """Images of 20 and 28 pixels; a damaged file says nothing."""
    scans = write_folder(tmp_path / "scans", pixels(size=28))
    Image.fromarray(pixels(size=20)[0]).save(scans / "mucus" / "small.png")
    (scans / "mucus" / "broken.png").write_bytes(b"no image")
    data = load(scans, size=32, on_bad_file="skip", cache=tmp_path / "cache")
    assert "enlarged from at most 28 to 32 pixels: size = 28 (--size 28) saves memory" in str(data.notes)
    assert "enlarged" not in str(load(scans, size=28, on_bad_file="skip", cache=tmp_path / "cache").notes)
    assert "enlarged" not in str(load("digits", cache=tmp_path / "cache").notes)  # the catalogue's own size


def test_a_class_spelt_otherwise_in_another_subset(tmp_path: Path) -> None:
    for subset, names in (("train", CLASSES), ("val", CLASSES), ("test", ("DEBRIS", "mucus"))):
        write_folder(tmp_path / "scans" / subset, pixels(size=20)[::4], names)
    with pytest.raises(FedBMError, match=r'no training image of class "DEBRIS" \(did you mean "debris"\?\)'):
        load(tmp_path / "scans", cache=tmp_path / "cache")


def test_warnings_of_inspect_contain_them() -> None:
    data = make_dataset(pixels(grey=(True, False)), [0] * 20 + [1] * 20, [0, 0, 0, 1, 2] * 8, CLASSES)
    assert any("colour reveals the class" in sentence for sentence in inspect(data).warnings)
