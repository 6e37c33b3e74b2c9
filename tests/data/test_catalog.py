"""The catalogue of data sets."""

from __future__ import annotations

import pytest

from fedbm.data.catalog.entries import CATALOG, entry_for_classes, find_entry
from fedbm.errors import FedBMError
from fedbm.runs.run_config import keys

SETTINGS = {key.name for key in keys()}

PAPER = {"digits": 10, "ham10000": 7, "pbc": 8, "kvasir": 8, "oct-c8": 8, "femnist": 62, "chars74k": 62}
MEDMNIST = {
    "dermamnist": 7,
    "bloodmnist": 8,
    "octmnist": 4,
    "pathmnist": 9,
    "pneumoniamnist": 2,
    "retinamnist": 5,
    "breastmnist": 2,
    "tissuemnist": 8,
    "organamnist": 11,
    "organcmnist": 11,
    "organsmnist": 11,
}


def test_the_catalogue_contains_paper_digits_and_medmnist() -> None:
    assert {name: len(entry.classes) for name, entry in CATALOG.items()} == PAPER | MEDMNIST


@pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)
def test_every_entry_is_complete_and_consistent(entry) -> None:
    assert CATALOG[entry.name] is entry
    assert entry.channels == len(entry.mean) == len(entry.std)
    assert entry.size % 4 == 0
    assert all((entry.title, entry.modality, entry.licence, entry.citation, entry.origin))
    assert set(entry.recommends) <= SETTINGS


@pytest.mark.parametrize("name", PAPER)
def test_classes_are_sorted_like_folders(name) -> None:
    assert list(CATALOG[name].classes) == sorted(CATALOG[name].classes)


def test_medmnist_has_the_label_order_of_its_files() -> None:
    tissues = ["adipose", "background", "debris", "lymphocytes", "mucus", "smooth-muscle", "normal-mucosa", "stroma"]
    assert list(CATALOG["pathmnist"].classes) == [*tissues, "adenocarcinoma"]
    assert list(CATALOG["retinamnist"].classes) == ["none", "mild", "moderate", "severe", "proliferative"]
    assert list(CATALOG["breastmnist"].classes) == ["malignant", "normal-or-benign"]
    assert list(CATALOG["dermamnist"].classes) == list(CATALOG["ham10000"].classes)
    assert list(CATALOG["bloodmnist"].classes) == list(CATALOG["pbc"].classes)
    assert list(CATALOG["octmnist"].classes) == ["CNV", "DME", "DRUSEN", "NORMAL"]


def test_folders_are_not_recognised_as_medmnist() -> None:
    """Other chest X-rays have these classes, too."""
    assert entry_for_classes(["normal", "pneumonia"]) is None
    assert entry_for_classes(list(CATALOG["dermamnist"].classes)) is CATALOG["ham10000"]


def test_only_distinctive_classes_are_recognised() -> None:
    """Other data may have classes 0 to 9. Entries recognised by their classes use the default size and channels."""
    by_classes = [entry for entry in CATALOG.values() if entry.by_classes]
    assert [entry.name for entry in by_classes] == ["ham10000", "pbc", "kvasir", "oct-c8"]
    assert {(entry.size, entry.channels) for entry in by_classes} == {(128, 3)}
    for name in ("digits", "femnist"):
        assert entry_for_classes(list(CATALOG[name].classes)) is None


@pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)
def test_concepts_differ_without_case(entry) -> None:
    texts = [text.lower() for text in entry.classes.values()]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_concepts_belong_to_class_names() -> None:
    oct_c8 = find_entry("oct-c8").classes
    assert oct_c8["DR"] == "diabetic retinopathy"
    assert oct_c8["MH"] == "macular hole"
    characters = find_entry("femnist").classes
    assert (characters["A"], characters["a"]) == ("large block capital A as in alpha", "tiny minuscule a as in alpha")


def test_images_that_flips_would_change_are_not_flipped() -> None:
    fixed = {"digits", "femnist", "chars74k", "pneumoniamnist", "organamnist", "organcmnist", "organsmnist"}
    assert {name for name, entry in CATALOG.items() if not entry.hflip} == fixed
    assert {name for name, entry in CATALOG.items() if not entry.vflip} == fixed | {"breastmnist"}


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(FedBMError, match=r'"Kvazir" \(did you mean "kvasir"\?\); the catalogue contains digits,'):
        find_entry("Kvazir")


def test_classes_are_recognised_in_label_order_only() -> None:
    names = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]
    assert entry_for_classes(names) is CATALOG["ham10000"]
    assert entry_for_classes(names[::-1]) is None
    assert entry_for_classes(names[:-1]) is None
