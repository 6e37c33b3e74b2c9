from __future__ import annotations

import pytest

from fedbm.data.catalog import CATALOG, entry_for_classes, find
from fedbm.errors import FedBMError

SETTINGS = {"clients", "epochs", "rounds", "ratio", "temperature", "pseudo_batch", "lambda_dis", "lambda_div"}


def test_the_catalogue_holds_the_data_sets_of_the_paper_and_digits() -> None:
    sizes = {name: len(entry.classes) for name, entry in CATALOG.items()}
    assert sizes == {"digits": 10, "ham10000": 7, "pbc": 8, "kvasir": 8, "oct-c8": 8, "femnist": 62}


@pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)
def test_every_entry_is_complete_and_agrees_with_itself(entry) -> None:
    assert CATALOG[entry.name] is entry
    assert entry.channels == len(entry.mean) == len(entry.std) == (1 if entry.size < 128 else 3)
    assert all((entry.title, entry.modality, entry.licence, entry.citation, entry.origin))
    assert set(entry.recommends) <= SETTINGS


@pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)
def test_labels_follow_sorted_class_names_as_folders_do(entry) -> None:
    assert list(entry.classes) == sorted(entry.classes)


@pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)
def test_concepts_stay_apart_for_an_encoder_that_ignores_case(entry) -> None:
    texts = [text.lower() for text in entry.classes.values()]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_concepts_belong_to_names() -> None:
    oct_c8 = find("oct-c8").classes
    assert oct_c8["DR"] == "diabetic retinopathy"
    assert oct_c8["MH"] == "macular hole"
    characters = find("femnist").classes
    assert (characters["A"], characters["a"]) == ("uppercase letter A (capital)", "lowercase letter a (small)")


def test_only_writing_must_not_be_flipped() -> None:
    assert {name for name, entry in CATALOG.items() if not (entry.hflip or entry.vflip)} == {
        "digits",
        "femnist",
    }


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(FedBMError, match=r'"Kvazir" \(did you mean "kvasir"\?\); the catalogue holds digits,'):
        find("Kvazir")


def test_classes_are_recognised_in_label_order_only() -> None:
    names = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]
    assert entry_for_classes(names) is CATALOG["ham10000"]
    assert entry_for_classes(names[::-1]) is None
    assert entry_for_classes(names[:-1]) is None
