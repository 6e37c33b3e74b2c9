"""The bundled embeddings match the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bundle_concepts import bundle, entries_to_bundle

from fedbm.data.catalog.entries import CATALOG
from fedbm.language.bundled import bundled_names, find_bundled, load_bundled
from fedbm.language.concept_distribution import ConceptDistribution
from fedbm.language.prompts import make_prompts

MINILM = Path(__file__).resolve().parents[2] / ".." / "shared" / "models" / "all-MiniLM-L6-v2"


def load(name: str) -> ConceptDistribution:
    bundled = load_bundled(name)
    assert bundled is not None, f"{name} is in the catalogue but not bundled; run bundle_concepts"
    return bundled


def test_the_whole_catalogue_is_bundled_and_nothing_twice() -> None:
    shared = {"chars74k", "dermamnist", "bloodmnist", "octmnist", "organcmnist", "organsmnist"}
    assert set(bundled_names()) == set(CATALOG) - shared
    assert {entry.name for entry in entries_to_bundle()} == set(bundled_names())
    assert load_bundled("nothing") is None


def test_data_sets_with_the_same_concepts_share_embeddings() -> None:
    assert torch.equal(load("dermamnist").embeddings, load("ham10000").embeddings)
    retina, scans = load("octmnist"), load("oct-c8")
    assert torch.equal(retina.embeddings[1], scans.embeddings[scans.classes.index("DME")])


@pytest.mark.parametrize("name", CATALOG)
def test_each_file_matches_the_catalogue(name: str) -> None:
    entry, bundled = CATALOG[name], load(name)
    assert dict(zip(bundled.classes, bundled.texts, strict=True)) == dict(entry.classes)
    assert list(bundled.classes) == list(entry.classes)
    assert bundled.provenance["encoder"] == "minilm"
    assert bundled.provenance["modality"] == entry.modality
    assert bundled.provenance["prompts"] == list(make_prompts("{c}", entry.modality))
    assert bundled.embeddings.shape == (len(entry.classes), len(make_prompts("x", entry.modality)), 384)


@pytest.mark.parametrize("name", CATALOG)
def test_bundled_concepts_are_well_separated(name: str) -> None:
    bundled = load(name)
    between = bundled.similarity().fill_diagonal_(-1)
    assert float(between.max()) < (0.87 if name == "femnist" else 0.99)  # upper and lower case letters differ, too
    assert "All concepts are well separated" in bundled.describe_separability()[1]


def test_classes_are_found_in_any_order_and_in_part() -> None:
    entry, bundled = CATALOG["pbc"], load("pbc")
    for names in (list(entry.classes), list(entry.classes)[::-1], ["platelet", "basophil"]):
        found = find_bundled(names, [entry.classes[name] for name in names], entry.modality)
        assert found is not None
        assert found.classes == tuple(names)
        for row, name in enumerate(names):
            assert torch.equal(found.embeddings[row], bundled.embeddings[bundled.classes.index(name)])


def test_other_texts_are_not_found() -> None:
    entry = CATALOG["pbc"]
    names, texts = list(entry.classes), list(entry.classes.values())
    assert find_bundled(names, texts, "endoscopy") is None
    assert find_bundled(names, ["a cell", *texts[1:]], entry.modality) is None
    assert find_bundled([*names, "blast"], [*texts, "blast cell"], entry.modality) is None
    assert find_bundled(names, [*texts[1:], texts[0]], entry.modality) is None


def test_a_rebuilt_file_equals_the_bundled_one(tmp_path: Path) -> None:
    if not MINILM.is_dir():
        pytest.skip("needs the MiniLM weights in ../shared/models")
    pytest.importorskip("transformers")
    (path,) = bundle(MINILM, ["ham10000"], into=tmp_path)
    rebuilt, bundled = ConceptDistribution.load(path), load("ham10000")
    assert rebuilt.provenance["weights"] == bundled.provenance["weights"]
    torch.testing.assert_close(rebuilt.embeddings, bundled.embeddings, atol=2e-4, rtol=2**-10)
