"""Concept embeddings bundled with the package, so that catalogued data sets need no language model.

`embeddings/<data set>.safetensors` contains MiniLM's embeddings in half precision, written by `bundle_concepts`. A data
set has no file of its own if an earlier one contains all of its concepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from fedbm.data.catalog.entry import Entry
from fedbm.data.catalog.lookup import CATALOG, find
from fedbm.language.concepts import ConceptDistribution, build_concepts

ENCODER = "minilm"
_SUFFIX = ".safetensors"


def bundled_names() -> tuple[str, ...]:
    found = (item.name for item in files("fedbm.language").joinpath("embeddings").iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)))


def load_bundled(name: str) -> ConceptDistribution | None:
    """Load the concepts that are bundled with the package.

    Args:
        name: name of a catalogued data set.

    Returns:
        The concepts of its classes in label order, or None if the name is not in the catalogue.
    """
    if name in bundled_names():
        with as_file(files("fedbm.language").joinpath("embeddings", name + _SUFFIX)) as path:
            return ConceptDistribution.load(path)
    entry = CATALOG.get(name)
    return find_bundled(list(entry.classes), list(entry.classes.values()), entry.modality) if entry else None


def find_bundled(classes: Sequence[str], texts: Sequence[str], modality: str) -> ConceptDistribution | None:
    """Return bundled concepts of these classes with these texts, in this order, or None.

    They may be any part of one bundled file, because an embedding depends only on text and modality.
    """
    wanted = set(zip(classes, texts, strict=True))
    for bundled in filter(None, map(load_bundled, bundled_names())):
        same_modality = bundled.provenance.get("modality") == modality
        if same_modality and wanted <= set(zip(bundled.classes, bundled.texts, strict=True)):
            return bundled.select(classes)
    return None


def entries_to_bundle() -> list[Entry]:
    """Return the catalogue without data sets whose concepts are all part of an earlier one."""
    kept: list[Entry] = []
    for entry in CATALOG.values():
        earlier = (e.classes.items() for e in kept if e.modality == entry.modality)
        if not any(entry.classes.items() <= concepts for concepts in earlier):
            kept.append(entry)
    return kept


def bundle_concepts(folder: Path, names: Iterable[str] | None = None, into: Path | None = None) -> list[Path]:
    """Embed the catalogue with the MiniLM model in *folder* and write the files into the package, or into *into*."""
    target = Path(__file__).parent / "embeddings" if into is None else into
    written = []
    for entry in entries_to_bundle() if names is None else map(find, names):
        concepts = build_concepts(list(entry.classes), list(entry.classes.values()), entry.modality, ENCODER, folder)
        written.append(target / f"{entry.name}{_SUFFIX}")
        concepts.save(written[-1], half=True)
    return written
