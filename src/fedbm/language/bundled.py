"""Concept embeddings bundled with the package, so that catalogued data sets need no language model.

`embeddings/<data set>.safetensors` contains MiniLM's embeddings in half precision, written by
`tools/bundle_concepts.py`. A data set has no file of its own if an earlier one contains all of its concepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files

from fedbm.data.catalog.entries import CATALOG
from fedbm.language.concept_distribution import ConceptDistribution

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

    Example:
        >>> import fedbm
        >>> fedbm.load_bundled("ham10000").classes
        ('akiec', 'bcc', 'bkl', 'df', 'mel', 'nv', 'vasc')
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
