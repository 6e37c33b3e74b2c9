"""Concepts of every catalogued data set, embedded beforehand: no language model is needed to use them.

`embeddings/<data set>.safetensors` holds MiniLM's embeddings in half precision, made from the catalogue by
`tools/bundle_concepts.py`. A data set whose concepts are all among those of an earlier one has no file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files

from fedbm.data.catalog.lookup import CATALOG
from fedbm.language.concepts import ConceptDistribution

ENCODER = "minilm"
_SUFFIX = ".safetensors"


def shipped_names() -> tuple[str, ...]:
    found = (item.name for item in files("fedbm.language").joinpath("embeddings").iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)))


def load_shipped(name: str) -> ConceptDistribution | None:
    """The concepts that came with the package for the data set *name*, or None."""
    if name in shipped_names():
        with as_file(files("fedbm.language").joinpath("embeddings", name + _SUFFIX)) as path:
            return ConceptDistribution.load(path)
    entry = CATALOG.get(name)
    return shipped_for(list(entry.classes), list(entry.classes.values()), entry.modality) if entry else None


def shipped_for(classes: Sequence[str], texts: Sequence[str], modality: str) -> ConceptDistribution | None:
    """Shipped concepts of exactly these classes with these texts, in this order, or None.

    They may be some or all of one shipped set, in any order: an embedding depends on text and modality alone.
    """
    asked = set(zip(classes, texts, strict=True))
    for name in shipped_names():
        held = load_shipped(name)
        if held is None or held.provenance.get("modality") != modality:
            continue
        if asked <= set(zip(held.classes, held.texts, strict=True)):
            return held.select(classes)
    return None
