"""Embed the catalogue's concepts and write them into the package.

python tools/bundle_concepts.py FOLDER      the folder that holds all-MiniLM-L6-v2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import fedbm.language.bundled
from fedbm.data.catalog.entries import CATALOG, Entry, find_entry
from fedbm.errors import FedBMError
from fedbm.language.bundled import ENCODER
from fedbm.language.concept_distribution import build_concepts

EMBEDDINGS = Path(fedbm.language.bundled.__file__).parent / "embeddings"


def entries_to_bundle() -> list[Entry]:
    """Return the catalogue without the data sets that share all concepts with an earlier one."""
    kept: list[Entry] = []
    for entry in CATALOG.values():
        earlier = (e.classes.items() for e in kept if e.modality == entry.modality)
        if not any(entry.classes.items() <= held for held in earlier):
            kept.append(entry)
    return kept


def bundle(folder: Path, names: Iterable[str] | None = None, into: Path = EMBEDDINGS) -> list[Path]:
    """Embed the concepts with the MiniLM in *folder* and return the files written.

    Args:
        folder: the folder that holds MiniLM's files.
        names: the data sets to embed; by default all that need a file of their own.
        into: where the files are written; by default the package.
    """
    written = []
    for entry in entries_to_bundle() if names is None else map(find_entry, names):
        concepts = build_concepts(list(entry.classes), list(entry.classes.values()), entry.modality, ENCODER, folder)
        written.append(into / f"{entry.name}.safetensors")
        concepts.save(written[-1], half=True)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return its exit status."""
    parser = argparse.ArgumentParser(description="Embed the catalogue's concepts and write them into the package.")
    parser.add_argument("folder", type=Path, help="the folder that holds all-MiniLM-L6-v2")
    try:
        for path in bundle(parser.parse_args(arguments).folder):
            print(f"wrote {path}")
    except FedBMError as error:
        print(f"bundle_concepts: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
