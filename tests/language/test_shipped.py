"""The embeddings in the package are those of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bundle_concepts import bundle, entries_to_bundle

from fedbm.data.catalog.lookup import CATALOG
from fedbm.language.bundled import load_shipped, shipped_for, shipped_names
from fedbm.language.concepts import ConceptDistribution
from fedbm.language.prompts import prompts
from fedbm.language.separability import strays

MINILM = Path(__file__).resolve().parents[2] / ".." / "shared" / "models" / "all-MiniLM-L6-v2"


def shipped(name: str) -> ConceptDistribution:
    held = load_shipped(name)
    assert held is not None, f"{name} is catalogued but not bundled; run tools/bundle_concepts.py"
    return held


def test_exactly_the_catalogue_is_shipped_and_nothing_twice() -> None:
    shared = {"chars74k", "dermamnist", "bloodmnist", "octmnist", "organcmnist", "organsmnist"}
    assert set(shipped_names()) == set(CATALOG) - shared
    assert {entry.name for entry in entries_to_bundle()} == set(shipped_names())
    assert load_shipped("nothing") is None


def test_data_sets_of_the_same_concepts_share_their_embeddings() -> None:
    assert torch.equal(shipped("dermamnist").embeddings, shipped("ham10000").embeddings)
    retina, scans = shipped("octmnist"), shipped("oct-c8")
    assert torch.equal(retina.embeddings[1], scans.embeddings[scans.classes.index("DME")])


@pytest.mark.parametrize("name", CATALOG)
def test_each_file_is_in_step_with_the_catalogue(name: str) -> None:
    entry, held = CATALOG[name], shipped(name)
    assert dict(zip(held.classes, held.texts, strict=True)) == dict(entry.classes)
    assert list(held.classes) == list(entry.classes)
    assert held.provenance["encoder"] == "minilm"
    assert held.provenance["modality"] == entry.modality
    assert held.provenance["prompts"] == list(prompts("{c}", entry.modality))
    assert held.embeddings.shape == (len(entry.classes), len(prompts("x", entry.modality)), 384)


@pytest.mark.parametrize("name", CATALOG)
def test_shipped_concepts_can_be_told_apart(name: str) -> None:
    held = shipped(name)
    between = held.similarity().fill_diagonal_(-1)
    assert float(between.max()) < 0.99
    assert int(strays(held.embeddings).sum()) == 0
    if name != "femnist":  # the letters that a language model can hardly see
        assert "No two concepts are nearly alike" in held.diagnose()[1]


def test_classes_are_found_in_any_order_and_in_part() -> None:
    entry, held = CATALOG["pbc"], shipped("pbc")
    for names in (list(entry.classes), list(entry.classes)[::-1], ["platelet", "basophil"]):
        found = shipped_for(names, [entry.classes[name] for name in names], entry.modality)
        assert found is not None
        assert found.classes == tuple(names)
        for row, name in enumerate(names):
            assert torch.equal(found.embeddings[row], held.embeddings[held.classes.index(name)])


def test_other_words_are_not_found() -> None:
    entry = CATALOG["pbc"]
    names, texts = list(entry.classes), list(entry.classes.values())
    assert shipped_for(names, texts, "endoscopy") is None
    assert shipped_for(names, ["a cell", *texts[1:]], entry.modality) is None
    assert shipped_for([*names, "blast"], [*texts, "blast cell"], entry.modality) is None
    assert shipped_for(names, [*texts[1:], texts[0]], entry.modality) is None


def test_a_rebuilt_file_is_the_shipped_one(tmp_path: Path) -> None:
    if not MINILM.is_dir():
        pytest.skip("needs the MiniLM weights in ../shared/models")
    pytest.importorskip("transformers")
    (path,) = bundle(MINILM, ["ham10000"], into=tmp_path)
    rebuilt, held = ConceptDistribution.load(path), shipped("ham10000")
    assert rebuilt.provenance["weights"] == held.provenance["weights"]
    torch.testing.assert_close(rebuilt.embeddings, held.embeddings, atol=2e-4, rtol=2**-10)
